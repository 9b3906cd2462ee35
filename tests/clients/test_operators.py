"""Hosts, zones, services and quotas with the stock client, at common microversions."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import CloudProcess

# This client spells `latest` as `2.latest`.
VERSIONS = (None, "2.1", "2.53", "2.latest")
RunScript = Callable[[str | None, str], tuple[list[Any], str]]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("operators") / "data", "--hosts", "4", "--zones", "east") as running:
        yield running


@pytest.fixture
def run(openstack: Path, cloud: CloudProcess) -> RunScript:
    return script_runner(openstack, cloud)


def script_runner(openstack: Path, cloud: CloudProcess) -> RunScript:
    """A function that runs commands in one process of the client, and returns their output and its errors."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
    environ |= {"OS_CLOUD": "kilonova", "OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml")}

    def run(version: str | None, script: str) -> tuple[list[Any], str]:
        chosen = {"OS_COMPUTE_API_VERSION": version} if version is not None else {}
        done = subprocess.run(
            [openstack], input=script, env={**environ, **chosen}, capture_output=True, text=True, check=False
        )
        shown, rest = [], done.stdout.lstrip()
        while rest:
            found, end = json.JSONDecoder().raw_decode(rest)
            shown.append(found)
            rest = rest[end:].lstrip()
        return shown, re.sub(r"This command is deprecated.*\n?", "", done.stderr).strip()

    return run


AGGREGATES = """
    aggregate create --property ssd=true fast -f json
    aggregate set --name faster --property cpu_allocation_ratio=2.0 fast
    aggregate unset --property ssd faster
    aggregate add host faster sim-003 -f json
    aggregate create --zone north north -f json
    aggregate list --long -f json
    availability zone list --long --compute -f json
    aggregate show faster -f json
    aggregate remove host faster sim-003 -f json
    aggregate delete faster
    aggregate delete north
    aggregate list -f json
"""


def check_aggregates(
    created: Any, with_host: Any, north: Any, aggregates: Any, zones: Any, shown: Any, without_host: Any, remaining: Any
) -> None:
    assert (created["name"], created["is_deleted"]) == ("fast", False)
    assert (with_host["name"], with_host["hosts"]) == ("faster", ["sim-003"])
    assert north["availability_zone"] == "north"
    row = next(each for each in aggregates if each["Name"] == "faster")
    assert row["Hosts"] == ["sim-003"]
    assert row["Properties"] == {"cpu_allocation_ratio": "2.0"}
    assert {(each["Zone Name"], each["Host Name"]) for each in zones if each["Service Name"] == "nova-compute"} == {
        ("east", f"sim-00{number}") for number in range(1, 5)
    }
    assert shown["properties"] == {"cpu_allocation_ratio": "2.0"}
    assert without_host["hosts"] == []
    assert [each["Name"] for each in remaining] == ["east"]


SERVICES = """
    compute service set --disable --disable-reason dust {down} sim-004 nova-compute
    compute service list --long --host sim-004 -f json
    compute service set --enable {up} sim-004 nova-compute
    compute service list --host sim-004 -f json
"""


def check_services(disabled: Any, enabled: Any) -> None:
    (off,), (on,) = disabled, enabled
    assert (off["Status"], off["Disabled Reason"], off["Zone"]) == ("disabled", "dust", "east")
    assert (on["Status"], on["State"]) == ("enabled", "up")
    if off.get("Forced Down") is not None:
        assert (off["State"], off["Forced Down"]) == ("down", True)


HYPERVISORS = """
    hypervisor list --long -f json
    hypervisor list --matching 002 -f json
    hypervisor show sim-001 -f json
    hypervisor stats show -f json
"""


def check_hypervisors(listed: Any, matching: Any, shown: Any, totals: Any) -> None:
    assert [each["Hypervisor Hostname"] for each in listed] == ["sim-001", "sim-002", "sim-003", "sim-004"]
    # Newer versions have no amounts, which placement shows.
    assert listed[0].get("vCPUs", 1) > 0
    assert [each["Hypervisor Hostname"] for each in matching] == ["sim-002"]
    assert (shown["hypervisor_hostname"], shown["aggregates"], shown["users"]) == ("sim-001", ["east"], "0")
    assert "min" in shown["uptime"]
    assert (totals["count"], totals["running_vms"]) == (4, 0)


QUOTAS = """
    quota set --cores 5 --server-groups 3 demo
    quota show --compute demo -f json
    quota delete --compute demo
    quota show --compute demo -f json
    quota show --default --compute demo -f json
    limits show --absolute -f json
"""


def check_quotas(changed: Any, deleted: Any, defaults: Any, limits: Any) -> None:
    quotas, after, default = ({row["Resource"]: row["Limit"] for row in each} for each in (changed, deleted, defaults))
    assert (quotas["cores"], quotas["server-groups"]) == (5, 3)
    assert after == default
    assert after["cores"] == 20
    assert any(row["Name"] in ("total_server_groups_used", "server_groups_used") for row in limits)


@pytest.mark.parametrize("version", VERSIONS)
def test_aggregates_services_hypervisors_and_quotas(run: RunScript, version: str | None) -> None:
    down, up = ("", "") if version == "2.1" else ("--down", "--up")
    script = AGGREGATES + SERVICES.format(down=down, up=up) + HYPERVISORS + QUOTAS
    shown, errors = run(version, script)
    assert errors == ""
    check_aggregates(*shown[:8])
    check_services(*shown[8:10])
    check_hypervisors(*shown[10:14])
    check_quotas(*shown[14:])


def test_os_hosts_of_old_versions(run: RunScript) -> None:
    script = """
        host list --zone east -f json
        host set --disable sim-002
        compute service list --host sim-002 -f json
        host set --enable sim-002
        compute service list --host sim-002 -f json
        host show sim-002 -f json
    """
    (listed, off, on, amounts), errors = run("2.42", script)
    assert set(errors.splitlines()) == {
        f"API has been deprecated; consider using '{other}' instead."
        for other in ("hypervisor list", "compute service set", "hypervisor show")
    }
    assert [(each["Host Name"], each["Service"]) for each in listed] == [
        (f"sim-00{number}", "compute") for number in range(1, 5)
    ]
    assert (off[0]["Status"], on[0]["Status"]) == ("disabled", "enabled")
    assert [each["Project"] for each in amounts] == ["(total)", "(used_now)", "(used_max)"]


def test_aggregate_cache_image(run: RunScript) -> None:
    shown, errors = run("2.81", "aggregate cache image east cirros-sim\naggregate show east -f json")
    assert errors == ""
    assert [each["name"] for each in shown] == ["east"]


def test_delete_service(tmp_path: Path, openstack: Path) -> None:
    """Uses a cloud of its own, because a host is missing for a while."""
    with CloudProcess(tmp_path / "data", "--hosts", "1") as own:
        admin, path = own.client("kilonova", version="2.53"), "/os-services?host=sim-001"
        (service,) = admin.get("compute", path).json()["services"]
        shown, errors = script_runner(openstack, own)(None, f"compute service delete {service['id']}")
        assert (shown, errors) == ([], "")
        # Its host is alive and registers again with the next heartbeat.
        assert service["id"] not in [each["id"] for each in admin.get("compute", path).json()["services"]]


def test_error_messages_of_the_client(run: RunScript) -> None:
    script = """
        aggregate add host east sim-009
        aggregate delete east
        quota show nowhere
        hypervisor show nowhere
    """
    shown, errors = run(None, script)
    assert shown == []
    for text in ("Compute host sim-009 could not be found", "still has hosts", "nowhere"):
        assert text in errors
