"""The stock client with its placement plugin against a real process, below /placement and at a root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import CloudProcess

DRIVER = Path(__file__).with_name("osc_driver.py")
AGGREGATES = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
CONSUMER, OTHER = "33333333-3333-4333-8333-333333333333", "44444444-4444-4444-8444-444444444444"
WHOSE = ("--project-id", "p", "--user-id", "u")


class Client:
    """Runs commands as one user at one microversion."""

    def __init__(self, process: subprocess.Popen[str], cloud: str = "kilonova", version: str = "1.39") -> None:
        self.process = process
        self.before = [cloud, "--os-placement-api-version", version]

    def run(self, *words: str) -> tuple[int, str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([*self.before, *words]) + "\n")
        self.process.stdin.flush()
        code, out, err = json.loads(self.process.stdout.readline())
        return code or 0, out, err

    def __call__(self, *words: str) -> Any:
        """Run a command that must succeed; its output, parsed if it is JSON."""
        shown = words[-1] != "quiet"
        command = (*words, "-f", "json") if shown else words[:-1]
        code, out, err = self.run(*command)
        assert code == 0, f"{' '.join(command)}: {out}{err}"
        return json.loads(out) if out.strip() else None

    def refused(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert code != 0, out
        return out + err


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("osc") / "data", "--hosts", "2", "--placement-port", "0") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def process(cloud: CloudProcess) -> Iterator[subprocess.Popen[str]]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
    environ["OS_CLIENT_CONFIG_FILE"] = str(cloud.data / "clouds.yaml")
    driver = [sys.executable, DRIVER]
    with subprocess.Popen(driver, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate()


@pytest.fixture(scope="module")
def osc(process: subprocess.Popen[str]) -> Client:
    return Client(process)


def test_hosts_are_providers(osc: Client) -> None:
    found = {one["name"]: one for one in osc("resource", "provider", "list")}
    assert len(found) == 2
    host = next(iter(found.values()))
    assert host["root_provider_uuid"] == host["uuid"]
    stocks = {one["resource_class"]: one for one in osc("resource", "provider", "inventory", "list", host["uuid"])}
    assert {"VCPU", "MEMORY_MB", "DISK_GB"} <= set(stocks)
    assert all(stock["used"] == 0 for stock in stocks.values())
    traits = osc("resource", "provider", "trait", "list", host["uuid"])
    assert {one["name"] for one in traits} <= {one["name"] for one in osc("trait", "list")}
    chosen = osc("allocation", "candidate", "list", "--resource", "VCPU=1", "--resource", "MEMORY_MB=512")
    assert {one["resource provider"] for one in chosen} == {one["uuid"] for one in found.values()}


def test_providers(osc: Client) -> None:
    root = osc("resource", "provider", "create", "root")
    child = osc("resource", "provider", "create", "child", "--parent-provider", root["uuid"])
    assert child["root_provider_uuid"] == root["uuid"]
    assert "already exists" in osc.refused("resource", "provider", "create", "child")
    renamed = osc("resource", "provider", "set", child["uuid"], "--name", "kid")
    assert renamed["name"] == "kid"
    assert osc("resource", "provider", "show", child["uuid"])["name"] == "kid"
    listed = osc("resource", "provider", "list", "--in-tree", child["uuid"])
    assert {one["uuid"] for one in listed} == {root["uuid"], child["uuid"]}
    assert [one["name"] for one in osc("resource", "provider", "list", "--name", "kid")] == ["kid"]
    assert "child resource providers" in osc.refused("resource", "provider", "delete", root["uuid"])
    moved = osc("resource", "provider", "set", child["uuid"], "--name", "kid", "--parent-provider", root["uuid"])
    assert moved["parent_provider_uuid"] == root["uuid"]
    for one in (child, root):
        osc("resource", "provider", "delete", one["uuid"], "quiet")
    assert "No resource provider" in osc.refused("resource", "provider", "show", root["uuid"])


@pytest.fixture
def provider(osc: Client) -> Iterator[str]:
    uuid = osc("resource", "provider", "create", f"made-{os.urandom(4).hex()}")["uuid"]
    yield uuid
    osc("resource", "provider", "delete", uuid, "quiet")


def test_inventories(osc: Client, provider: str) -> None:
    below = ("resource", "provider", "inventory")
    created = osc(
        *below, "set", provider, "--resource", "VCPU=16", "--resource", "VCPU:max_unit=4", "--resource", "DISK_GB=100"
    )
    assert {one["resource_class"] for one in created} == {"VCPU", "DISK_GB"}
    assert osc(*below, "show", provider, "VCPU")["max_unit"] == 4
    changed = osc(*below, "class", "set", provider, "VCPU", "--total", "32", "--allocation_ratio", "2.0")
    assert (changed["total"], changed["allocation_ratio"]) == (32, 2.0)
    osc(*below, "set", provider, "--amend", "--resource", "DISK_GB:reserved=5")
    assert {one["resource_class"]: one["total"] for one in osc(*below, "list", provider)} == {
        "VCPU": 32,
        "DISK_GB": 100,
    }
    osc(*below, "delete", provider, "--resource-class", "DISK_GB", "quiet")
    osc(*below, "delete", provider, "quiet")
    assert osc(*below, "list", provider) == []
    assert "No inventory of class" in osc.refused(*below, "show", provider, "VCPU")


def test_classes_and_traits(osc: Client, provider: str) -> None:
    assert osc("resource", "class", "show", "VCPU")["name"] == "VCPU"
    osc("resource", "class", "create", "CUSTOM_GOLD", "quiet")
    osc("resource", "class", "set", "CUSTOM_SILVER", "quiet")
    assert {"CUSTOM_GOLD", "CUSTOM_SILVER"} < {one["name"] for one in osc("resource", "class", "list")}
    for name in ("CUSTOM_GOLD", "CUSTOM_SILVER"):
        osc("resource", "class", "delete", name, "quiet")
    assert "Cannot delete standard resource class" in osc.refused("resource", "class", "delete", "VCPU")
    osc("trait", "create", "CUSTOM_RED", "quiet")
    assert osc("trait", "show", "CUSTOM_RED") == {"name": "CUSTOM_RED"}
    osc("resource", "provider", "trait", "set", provider, "--trait", "CUSTOM_RED", "--trait", "HW_CPU_X86_AVX")
    held = osc("resource", "provider", "trait", "list", provider)
    assert {one["name"] for one in held} == {"CUSTOM_RED", "HW_CPU_X86_AVX"}
    assert "CUSTOM_RED" in {one["name"] for one in osc("trait", "list", "--associated")}
    assert "is in use" in osc.refused("trait", "delete", "CUSTOM_RED")
    found = osc("resource", "provider", "list", "--required", "CUSTOM_RED")
    assert [one["uuid"] for one in found] == [provider]
    assert provider not in {one["uuid"] for one in osc("resource", "provider", "list", "--forbidden", "CUSTOM_RED")}
    osc("resource", "provider", "trait", "delete", provider, "quiet")
    osc("trait", "delete", "CUSTOM_RED", "quiet")


def test_aggregates(osc: Client, provider: str) -> None:
    generation = osc("resource", "provider", "show", provider)["generation"]
    chosen = [word for aggregate in AGGREGATES for word in ("--aggregate", aggregate)]
    osc("resource", "provider", "aggregate", "set", provider, *chosen, "--generation", str(generation))
    listed = osc("resource", "provider", "aggregate", "list", provider)
    assert {one["uuid"] for one in listed} == set(AGGREGATES)
    found = osc("resource", "provider", "list", "--aggregate-uuid", AGGREGATES[0])
    assert [one["uuid"] for one in found] == [provider]
    stale = ("resource", "provider", "aggregate", "set", provider, "--generation", str(generation))
    assert "generation" in osc.refused(*stale)


def test_allocations(osc: Client, provider: str) -> None:
    below = ("resource", "provider", "allocation")
    osc("resource", "provider", "inventory", "set", provider, "--resource", "VCPU=8", "--resource", "DISK_GB=50")
    wanted = f"rp={provider},VCPU=2,DISK_GB=10"
    osc(*below, "set", CONSUMER, *WHOSE, "--consumer-type", "INSTANCE", "--allocation", wanted)
    (held,) = osc(*below, "show", CONSUMER)
    assert held["resource_provider"] == provider
    assert held["resources"] == {"VCPU": 2, "DISK_GB": 10}
    assert (held["project_id"], held["consumer_type"]) == ("p", "INSTANCE")
    used = osc("resource", "provider", "usage", "show", provider)
    assert {one["resource_class"]: one["usage"] for one in used} == {"VCPU": 2, "DISK_GB": 10}
    assert "has allocations" in osc.refused("resource", "provider", "delete", provider)
    assert "in use" in osc.refused("resource", "provider", "inventory", "delete", provider)
    too_much = f"rp={provider},VCPU=7"
    assert "exceed the capacity" in osc.refused(
        *below, "set", OTHER, *WHOSE, "--consumer-type", "INSTANCE", "--allocation", too_much
    )
    shown = osc("resource", "provider", "show", provider, "--allocations")
    assert list(shown["allocations"]) == [CONSUMER]
    osc(*below, "unset", CONSUMER, "--provider", provider, "--resource-class", "DISK_GB")
    assert osc(*below, "show", CONSUMER)[0]["resources"] == {"VCPU": 2}
    osc(*below, "delete", CONSUMER, "quiet")
    assert osc(*below, "show", CONSUMER) == []
    assert "No allocations for consumer" in osc.refused(*below, "delete", CONSUMER)


@pytest.mark.parametrize("version", ["1.0", "1.11", "1.28"])
def test_old_versions(process: subprocess.Popen[str], osc: Client, provider: str, version: str) -> None:
    osc("resource", "provider", "inventory", "set", provider, "--resource", "VCPU=8")
    old = Client(process, version=version)
    whose = () if version == "1.0" else WHOSE
    old("resource", "provider", "allocation", "set", OTHER, "--allocation", f"rp={provider},VCPU=3", *whose)
    (held,) = old("resource", "provider", "allocation", "show", OTHER)
    assert held["resources"] == {"VCPU": 3}
    if version == "1.11":
        old("resource", "provider", "aggregate", "set", provider, "--aggregate", AGGREGATES[0])
        assert old("resource", "provider", "aggregate", "list", provider) == [{"uuid": AGGREGATES[0]}]
    if version != "1.0":
        used = old("resource", "usage", "show", "p")
        assert used == [{"resource_class": "VCPU", "usage": 3}]
    old("resource", "provider", "allocation", "delete", OTHER, "quiet")


def test_members_are_forbidden(process: subprocess.Popen[str]) -> None:
    assert "403" in Client(process, "kilonova-demo").refused("resource", "provider", "list")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_sdk_at_root_port(cloud: CloudProcess, osc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin uses only the catalog; the SDK accepts an endpoint override."""
    import openstack

    monkeypatch.delenv("OS_CLOUD", raising=False)
    config = openstack.config.OpenStackConfig(config_files=[str(cloud.data / "clouds.yaml")])
    root = cloud.endpoints["placement-root"]
    assert root.count("/") == 2
    region = config.get_one(cloud="kilonova", placement_endpoint_override=root)
    with openstack.connection.Connection(config=region) as sdk:
        assert sdk.placement.get_endpoint().rstrip("/") == root
        created = sdk.placement.create_resource_provider(name="sdk")
        stock = sdk.placement.create_resource_provider_inventory(
            created, "VCPU", total=4, resource_provider_generation=0
        )
        assert stock.total == 4
        found = {one.id for one in sdk.placement.resource_providers()}
        assert found == {one["uuid"] for one in osc("resource", "provider", "list")}
        sdk.placement.delete_resource_provider(created, ignore_missing=False)
