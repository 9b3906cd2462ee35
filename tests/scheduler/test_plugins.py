"""Filters and weighers of installed packages. Builds, installs and uses the example package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kilonova.scheduler import plugins
from kilonova.scheduler.config import FILTERS, WEIGHTS
from kilonova.scheduler.filters import load
from tests.scheduler.filters.support import explain, is_idle, passing, set_metadata
from tests.scheduler.support import host, snapshot
from tests.support.cloud_process import Client, CloudProcess, NotStarted

EXAMPLE = Path(__file__).parents[2] / "examples" / "scheduler-filter"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the installed example; built from a copy, so that the source stays clean."""
    directory = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, directory / "source")
    target = directory / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(directory / "source")], check=True, capture_output=True)
    return target


@pytest.fixture
def on_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))


@pytest.mark.usefixtures("on_path")
def test_filter_from_entry_point() -> None:
    plugins.check(plugins.FILTERS, ["zone", "rack"])
    assert [check.name for check in load(["rack", "zone"])] == ["rack", "zone"]
    hosts = snapshot(host(1, aggregates=frozenset({1})), host(2, aggregates=frozenset({2})), host(3))
    set_metadata(hosts, {1: {"rack": "r1"}, 2: {"rack": "r2"}})
    assert is_idle("rack", hosts)
    assert passing("rack", hosts, hints={"rack": "r2"}) == {"h2"}
    assert explain("rack", hosts, 0, hints={"rack": "r2"}) == ("not in rack r2", "r2", "r1")
    assert explain("rack", hosts, 2, hints={"rack": "r2"}).have == "no rack"


def test_check_rejects_unknown_names_without_loading() -> None:
    plugins.check(plugins.FILTERS, FILTERS)
    plugins.check(plugins.WEIGHERS, WEIGHTS)
    plugins.check(plugins.FILTERS, ["kilonova.scheduler.filters.zone"])
    for name in ("rack", "no.such.module", "kilonova.nothing", "", "..zone"):
        with pytest.raises(ValueError, match="no scheduler filter"):
            plugins.check(plugins.FILTERS, [name])


def test_error_names_entry_point_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "broken-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[kilonova.scheduler.weighers]\nbroken = no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="no scheduler weigher 'broken': No module named 'no_such_module'"):
        plugins.find(plugins.WEIGHERS, "broken")


def test_cloud_schedules_with_installed_filter(tmp_path: Path, installed: Path) -> None:
    configured = {"KILONOVA_SCHEDULER__FILTERS": ",".join(("rack", *FILTERS))}
    with pytest.raises(NotStarted) as refused:
        CloudProcess(tmp_path / "without", "--hosts", "2", environ=configured).start()
    assert "there is no scheduler filter 'rack'" in refused.value.output

    environ = configured | {"PYTHONPATH": str(installed)}
    with CloudProcess(tmp_path / "with", "--hosts", "2", environ=environ) as cloud:
        admin = cloud.client("kilonova")
        name = admin.get("compute", "/os-hypervisors/detail").json()["hypervisors"][1]["service"]["host"]
        put_into_rack(admin, name, "r7")
        there = boot(admin, "r7")
        assert admin.wait(there, status="ACTIVE")["OS-EXT-SRV-ATTR:host"] == name
        nowhere = boot(admin, "r8")
        fault = admin.wait(nowhere, status="ERROR")["fault"]
        assert fault["message"] == "No valid host was found: 2 hosts: 2 not in rack r8"


def put_into_rack(admin: Client, host: str, rack: str) -> None:
    body = {"aggregate": {"name": rack, "availability_zone": None}}
    number = admin.post("compute", "/os-aggregates", body).json()["aggregate"]["id"]
    for action in ({"set_metadata": {"metadata": {"rack": rack}}}, {"add_host": {"host": host}}):
        assert admin.post("compute", f"/os-aggregates/{number}/action", action).status == 200


def boot(client: Client, rack: str) -> str:
    image = client.get("image", "/images").json()["images"][0]["id"]
    server = {"name": "web", "flavorRef": "1", "imageRef": image, "networks": "auto"}
    body = {"server": server, "os:scheduler_hints": {"rack": rack}}
    answer = client.post("compute", "/servers", body, version="2.37")
    assert answer.status == 202, answer.body
    return str(answer.json()["server"]["id"])


def test_former_attribute_names_still_work_for_filters() -> None:
    hosts = snapshot(host(1))
    assert list(hosts.stock("VCPU").limit) == list(hosts.inventory("VCPU").capacity)
    assert hosts.machines is hosts.hypervisors
