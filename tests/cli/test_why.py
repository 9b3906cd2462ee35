"""`kilonova why` and `kilonova fit` against a running cloud."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova.cli.tables import describe_request, draw_bar, total_needed
from tests.support.cloud_process import KILONOVA, CloudProcess, kilonova

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    """Two hosts in two zones, a running server, and a server without a valid host."""
    small = {"KILONOVA_SIM__VCPUS": "2", "KILONOVA_SIM__MEMORY_MB": "4096", "KILONOVA_SIM__DISK_GB": "50"}
    directory = tmp_path_factory.mktemp("why") / "data"
    unlimited = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")}
    with CloudProcess(directory, "--hosts", "2", "--zones", "az1,az2", environ={**small, **unlimited}) as cloud:
        member = cloud.client("kilonova-demo")
        member.wait(member.boot("web"), status="ACTIVE")
        member.wait(_boot(cloud, "big", "3"), status="ERROR")
        yield cloud


def _boot(cloud: CloudProcess, name: str, flavor: str) -> str:
    client = cloud.client("kilonova-demo", version="2.37")
    image = client.get("image", "/images").json()["images"][0]["id"]
    server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": "auto", "availability_zone": "az1"}
    response = client.post("compute", "/servers", {"server": server})
    assert response.status == 202, response.body
    return str(response.json()["server"]["id"])


def run_command(cloud: CloudProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return kilonova(*arguments, "--data", str(cloud.data))


def output_of(cloud: CloudProcess, *arguments: str) -> str:
    done = run_command(cloud, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_why_shows_host_and_free_capacity(cloud: CloudProcess) -> None:
    shown = output_of(cloud, "why", "web")
    lines = shown.splitlines()
    server = cloud.client("kilonova").get("compute", "/servers/detail?all_tenants=1&name=web").json()["servers"][0]
    host = server["OS-EXT-SRV-ATTR:host"]
    assert lines[0] == f"web ({server['id']}) is ACTIVE on {host}"
    assert "boot: 2 of 2 hosts fit" in shown
    assert "requested 1 VCPU, 512 MB memory, 1 GB disk" in shown
    (chosen,) = [line for line in lines if line.lstrip().startswith("→")]
    assert chosen.split()[1] == host
    assert "██████████" in chosen


def test_why_shows_need_and_have_of_each_host(cloud: CloudProcess) -> None:
    shown = output_of(cloud, "why", "big")
    assert "is ERROR\n" in shown.splitlines()[0] + "\n"
    assert "No valid host was found: 2 hosts: " in shown
    assert "1 not in zone az1" in shown
    assert "lacks 4096 MB memory" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if line.lstrip().startswith("sim-")}
    assert rows.keys() == {"sim-001", "sim-002"}
    assert any("zone" in row and "az2" in row for row in rows.values())
    assert any("4096 MB memory" in row and "MB memory free of" in row for row in rows.values())


def test_why_accepts_id_of_deleted_server(cloud: CloudProcess) -> None:
    member = cloud.client("kilonova-demo")
    server_id = _boot(cloud, "short-lived", "1")
    member.wait(server_id, status="ACTIVE")
    assert output_of(cloud, "why", server_id).startswith(f"short-lived ({server_id}) is ACTIVE")
    assert member.delete("compute", f"/servers/{server_id}").status == 204
    until = time.monotonic() + 60
    while member.get("compute", f"/servers/{server_id}").status != 404:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert output_of(cloud, "why", server_id, "--all").startswith(f"server ({server_id}) is DELETED")


@pytest.mark.parametrize("name", ["web 3", "Zürich ☃", "a.b-c_d (1) [x] $5 100%", "back\\slash", "what?*+|^{2}"])
def test_why_accepts_any_server_name(cloud: CloudProcess, name: str) -> None:
    server_id = _boot(cloud, name, "5")
    assert output_of(cloud, "why", name).startswith(f"{name} ({server_id}) is ")
    pattern = run_command(cloud, "why", "w.b")
    assert "there is no server 'w.b'" in pattern.stderr


def test_why_hides_hosts_from_members(cloud: CloudProcess) -> None:
    for server in ("web", "big"):
        shown = output_of(cloud, "why", server, "--cloud", "kilonova-demo")
        assert "sim-0" not in shown
        assert "FILTER" in shown


def test_json_output(cloud: CloudProcess) -> None:
    shown: dict[str, Any] = json.loads(output_of(cloud, "why", "big", "--json"))
    assert shown["server"]["name"] == "big"
    assert shown["sees"] == "all hosts"
    assert {one["host"] for one in shown["attempts"][0]["rejections"]} == {"sim-001", "sim-002"}
    found = json.loads(output_of(cloud, "fit", "--flavor", "m1.tiny", "--json"))
    assert found["servers"] == sum(one["servers"] for one in found["hosts"]) > 0


def test_fit_shows_servers_per_zone_and_host(cloud: CloudProcess) -> None:
    found = json.loads(output_of(cloud, "fit", "--flavor", "1", "--json"))
    shown = output_of(cloud, "fit", "--flavor", "m1.tiny", "--image", "cirros-sim")
    assert shown.startswith(f"{found['servers']} more servers fit: m1.tiny needs 1 VCPU, 512 MB memory, 1 GB disk\n")
    assert "RUNS OUT FIRST" in shown
    assert "MEMORY_MB" in shown
    zoned = output_of(cloud, "fit", "--flavor", "m1.tiny", "--zone", "az1", "--limit", "0")
    assert f"{found['zones']['az1']} more servers fit in zone az1" in zoned
    assert "sim-001" not in zoned
    none = output_of(cloud, "fit", "--flavor", "m1.xlarge")
    assert none.startswith("0 more servers fit")
    assert "No valid host was found: 2 hosts: " in none


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("why", "nobody"), "there is no server 'nobody'"),
        (("why", UNKNOWN_ID), f"there is no server '{UNKNOWN_ID}'"),
        (("why", "web", "--cloud", "nowhere"), "--cloud: 'nowhere' is not one of kilonova, "),
        (("fit", "--flavor", "nothing"), "Flavor nothing could not be found."),
        (("fit", "--flavor", "1", "--zone", "nowhere"), "The requested availability zone is not available"),
        (("fit", "--flavor", "1", "--image", "nothing"), "Can not find requested image nothing."),
        (("fit", "--flavor", "1", "--cloud", "kilonova-demo"), "Policy doesn't allow kilonova:fit to be performed."),
    ],
)
def test_errors_are_one_line(cloud: CloudProcess, arguments: tuple[str, ...], message: str) -> None:
    refused = run_command(cloud, *arguments)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_why_with_ambiguous_name(cloud: CloudProcess) -> None:
    ids = {_boot(cloud, "twin", "1") for _ in range(2)}
    refused = run_command(cloud, "why", "twin")
    assert refused.returncode == 1
    assert "2 servers are called 'twin'" in refused.stderr
    assert all(server_id in refused.stderr for server_id in ids)
    for server_id in ids:  # other tests count how many more servers fit
        cloud.client("kilonova-demo").wait(server_id, status="ACTIVE")


def test_why_without_running_cloud(tmp_path: Path) -> None:
    refused = kilonova("why", "web", "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "no cloud is running in" in refused.stderr


def test_bar_length() -> None:
    assert draw_bar(10, 10) == "██████████"
    assert draw_bar(0, 10) == "··········"
    assert draw_bar(5, 10) == "█████·····"
    assert draw_bar(1, 16, 2) == "▏·"
    assert draw_bar(20, 10) == "██████████"
    assert draw_bar(1, 0) == "··········"


def test_describe_request() -> None:
    requested = {
        "resources": {"VCPU": 1, "CUSTOM_X": 2},
        "groups": {"1": {"VCPU": 2}},
        "zone": "az1",
        "required_traits": ["A", "B"],
    }
    assert describe_request(requested) == "1 VCPU, 2 CUSTOM_X; group 1: 2 VCPU; zone az1; traits A, B"
    assert total_needed(requested) == {"VCPU": 3, "CUSTOM_X": 2}


def test_names_are_not_wrapped_on_narrow_terminal(cloud: CloudProcess) -> None:
    for arguments in (("why", "big"), ("why", "web"), ("fit", "--flavor", "m1.tiny")):
        narrow = on_terminal(80, *arguments, "--data", str(cloud.data))
        assert "\x1b[" in narrow, "colours on a terminal"
        plain = re.sub(r"\x1b\[[0-9;]*m", "", narrow)
        assert re.search(r"^ +(→ +)?sim-001 ", plain, re.MULTILINE), plain
        wide = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(200, *arguments, "--data", str(cloud.data)))
        assert re.search(r"[█▏▎▍▌▋▊▉·] \d+ of \d+", wide), wide
    assert "\x1b[" not in output_of(cloud, "why", "big"), "no colours in a pipe"


def on_terminal(columns: int, *arguments: str) -> str:
    """The output of a command on a terminal with this many columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR"):
        environ.pop(name, None)
    with subprocess.Popen(
        [KILONOVA, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=environ
    ) as process:
        os.close(terminal)
        printed = b""
        # Reading fails when the last process has closed the terminal.
        with contextlib.suppress(OSError):
            while chunk := os.read(controller, 65536):
                printed += chunk
    os.close(controller)
    assert process.returncode == 0, printed
    return printed.decode().replace("\r\n", "\n")
