"""Shapes of simulated hosts: the file, and clouds with such hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.sim.facts import Hardware, host_facts
from kilonova.hosts.drivers.sim.shapes import Shape, ShapeError, Shapes, Sharing, load
from kilonova.hosts.embedded import EmbeddedConfig
from tests.support.cloud_process import Client, CloudProcess, NotStarted, kilonova

EXAMPLES = Path(__file__).parents[3] / "examples" / "host-shapes"


# The file


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir()))
def test_every_example_file_is_loaded_and_shown(example: str) -> None:
    shapes = load(EXAMPLES / example)
    done = kilonova("sim", "shape", str(EXAMPLES / example))
    assert done.returncode == 0, done.stderr
    for shape in shapes.shape:
        assert f"{shape.name}: {shape.hosts} host" in done.stdout
        assert all(f"HOST_{part.name}" in done.stdout for part in shape.providers())
    assert all(f"{one.name}: shared by" in done.stdout for one in shapes.sharing)


def test_shapes_are_assigned_in_order(tmp_path: Path) -> None:
    rest, one, two = Shape(name="rest"), Shape(name="one", hosts=1), Shape(name="two", hosts=2)
    names = [f"h{number}" for number in range(5)]
    assigned = Shapes(shape=[rest, one, two]).assign(names)
    assert [assigned[name].name for name in names] == ["one", "two", "two", "rest", "rest"]
    assert list(Shapes(shape=[one, two]).assign(names)) == ["h0", "h1", "h2"]
    config = EmbeddedConfig(directory=tmp_path, hosts=1, shapes=Shapes(shape=[rest, one, two]))
    assert len(config.hardware_by_host()) == 4, "raised to the number of hosts that the shapes need"


def test_sharing_includes_hosts_by_name_or_shape() -> None:
    assert Sharing(name="san").includes("sim-001", "any")
    by_shape = Sharing(name="san", shapes=["diskless"])
    assert by_shape.includes("sim-001", "diskless")
    assert not by_shape.includes("sim-001", "")
    by_name = Sharing(name="san", hosts=["sim-00[12]"])
    assert [by_name.includes(host, "") for host in ("sim-001", "sim-002", "sim-003")] == [True, True, False]


def test_host_facts_follow_shape() -> None:
    facts = host_facts("arm-1", Hardware(shape=load(EXAMPLES / "numa.toml").shape[1]))
    assert (facts.hypervisor_type, facts.hypervisor_version) == ("QEMU", 8002000)
    assert (facts.cpu_info["arch"], facts.cpu_info["model"]) == ("aarch64", "cortex-a72")
    assert {"COMPUTE_ARCH_AARCH64", "HW_ARCH_AARCH64"} <= set(facts.traits)
    assert not any("X86" in trait for trait in facts.traits)
    cells = host_facts("numa-1", Hardware(shape=load(EXAMPLES / "numa.toml").shape[0]))
    assert [part.name for part in cells.nested] == ["NUMA0", "NUMA1"]
    assert cells.nested[0].inventory["VCPU"].allocation_ratio == 2.0
    bare = Shape(name="bare", inventory={"VCPU": 1}, without_traits=["COMPUTE_IMAGE_TYPE_QCOW2"])
    assert "COMPUTE_IMAGE_TYPE_QCOW2" not in host_facts("bare-1", Hardware(shape=bare)).traits


HOST = '[[shape]]\nname = "a"\n'
OK = HOST + "inventory = { VCPU = 1 }\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("[[shape", "Expected ']]' at the end"),
        ("", "shape: at least one shape is required"),
        ("colour = 1", "Object contains unknown field `colour`"),
        (OK + "speed = 3", "shape[0]: Object contains unknown field `speed`"),
        (HOST, "shape[0].inventory: neither the host nor its nested providers have an inventory"),
        (HOST + 'inventory = { VCPU = "x" }', "shape[0].inventory.VCPU: Expected `int | object`, got `str`"),
        (HOST + "inventory = { VCPU = 0 }", "shape[0].inventory.VCPU.total: 0 is not between 1"),
        (HOST + "inventory = { VCPU = { total = 1, reserved = 2 } }", "shape[0].inventory.VCPU.reserved: 2 is more"),
        (HOST + "inventory = { VCPU = { reserved = 2 } }", "shape[0].inventory.VCPU: Object missing required field"),
        (HOST + "inventory = { VCPU = { total = 1.5 } }", "shape[0].inventory.VCPU.total: Expected `int`"),
        (HOST + "inventory = { VCPU = { total = 1, min_unit = 2 } }", "VCPU.min_unit: 2 is more than the max_unit"),
        (HOST + "inventory = { VCPU = { total = 1, step_size = 0 } }", "VCPU.step_size: 0 is not between 1"),
        (HOST + "inventory = { VCPU = { total = 1, allocation_ratio = 0 } }", "VCPU.allocation_ratio: 0.0 is not a"),
        (HOST + "inventory = { VCPU = { total = 1, allocation_ratio = nan } }", "VCPU.allocation_ratio: nan is not a"),
        (HOST + "inventory = { CPUS = 1 }", "shape[0].inventory.CPUS: neither a standard resource class"),
        (OK + 'traits = ["HW_FAST"]', "shape[0].traits: 'HW_FAST' is neither a standard trait"),
        (OK + 'arch = "z80"', "shape[0].arch: 'z80' is not an architecture"),
        (OK + "hosts = -1", "shape[0].hosts: -1 is not between 0"),
        (OK + OK, "shape: the name 'a' is used more than once"),
        (OK + OK.replace('"a"', '"b"'), "shape: only one shape may omit `hosts`"),
        (OK + '[[shape.nested]]\nname = "a b"', "shape[0].nested[0].name: 'a b' is not a name"),
        (OK + '[[shape.nested]]\nname = "X"\ncount = 0', "shape[0].nested[0].count: 0 is not between 1"),
        (OK + '[[shape.nested]]\nname = "X"\n' * 2, "shape[0].nested: the name 'X' is used more than once"),
        (
            OK + '[[shape.nested]]\nname = "X"\ncount = 900\n[[shape.nested.nested]]\nname = "Y"\ncount = 900',
            "shape[0].nested: more than 1000 providers",
        ),
        (OK + '[[sharing]]\nname = "san"', "sharing[0].inventory: a sharing provider needs an inventory"),
        (
            OK + '[[sharing]]\nname = "san"\nshapes = ["b"]\ninventory = { DISK_GB = 1 }',
            "sharing[0].shapes: there is no shape 'b'",
        ),
        (
            OK + '[[sharing]]\nname = "san"\naggregate = "x"\ninventory = { DISK_GB = 1 }',
            "sharing[0].aggregate: 'x' is not a uuid",
        ),
    ],
)
def test_invalid_shape_names_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(text)
    with pytest.raises(ShapeError) as refused:
        load(path)
    assert str(refused.value).startswith(f"host shapes {path}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("no.toml", None, "No such file or directory"),
        ("bytes.toml", b"\xff\xfe\x00", "not a text file"),
        ("bad.yaml", b"shape: [", "at line 1"),
        ("list.yaml", b"- 1", "Expected `object`, got `array`"),
    ],
)
def test_unreadable_shapes_file_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ShapeError, match=message):
        load(tmp_path / name)


def test_invalid_shapes_file_prevents_start(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(HOST + "inventory = { CPUS = 1 }")
    with pytest.raises(NotStarted) as refused:
        CloudProcess(tmp_path / "data", "--host-shape", str(path)).start()
    assert f"host shapes {path}: shape[0].inventory.CPUS: neither" in refused.value.output
    assert "Traceback" not in refused.value.output
    assert kilonova("sim", "shape", str(path)).returncode == 1


# Clouds


class Shaped:
    """A cloud of shaped hosts, seen through placement's API."""

    def __init__(self, cloud: CloudProcess) -> None:
        self.cloud = cloud
        self.client: Client = cloud.client("kilonova")
        self.flavors = 0

    def get(self, path: str) -> Any:
        answer = self.client.get("placement", path, version="1.39")
        assert answer.status == 200, answer.body
        return answer.json()

    def providers(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.get("/resource_providers")["resource_providers"]}

    def parents(self) -> dict[str, str | None]:
        providers = self.providers()
        names = {one["uuid"]: name for name, one in providers.items()} | {None: None}
        return {name: names[one["parent_provider_uuid"]] for name, one in providers.items()}

    def provider_data(self, name: str, what: str) -> Any:
        return self.get(f"/resource_providers/{self.providers()[name]['uuid']}/{what}")[what]

    def flavor(self, **specs: str) -> str:
        self.flavors += 1
        body = {"name": f"shaped-{self.flavors}", "vcpus": 2, "ram": 1024, "disk": 5}
        made = self.client.post("compute", "/flavors", {"flavor": body}).json()["flavor"]["id"]
        if specs:
            answer = self.client.post("compute", f"/flavors/{made}/os-extra_specs", {"extra_specs": specs})
            assert answer.status == 200, answer.body
        return str(made)

    def boot(self, flavor: str, **more: Any) -> str:
        image = self.client.get("image", "/images").json()["images"][0]["id"]
        body = {"name": "web", "flavorRef": flavor, "imageRef": image, "networks": "none", **more}
        answer = self.client.post("compute", "/servers", {"server": body}, version="2.90")
        assert answer.status == 202, answer.body
        server = str(answer.json()["server"]["id"])
        self.client.wait(server, status="ACTIVE")
        return server

    def delete(self, server: str) -> None:
        assert self.client.delete("compute", f"/servers/{server}").status == 204

    def allocations(self, server: str) -> dict[str, dict[str, int]]:
        """The server's allocations, by provider name."""
        names = {one["uuid"]: name for name, one in self.providers().items()}
        allocations = self.get(f"/allocations/{server}")["allocations"]
        return {names[uuid]: one["resources"] for uuid, one in allocations.items()}


@contextmanager
def shaped(directory: Path, example: str) -> Iterator[Shaped]:
    with CloudProcess(directory / "data", "--hosts", "1", "--host-shape", str(EXAMPLES / example)) as cloud:
        yield Shaped(cloud)


def test_server_is_allocated_in_one_numa_cell(tmp_path: Path) -> None:
    with shaped(tmp_path, "numa.toml") as numa:
        cells = {"sim-001_NUMA0": "sim-001", "sim-001_NUMA1": "sim-001"}
        more = {"sim-002_NUMA0": "sim-002", "sim-002_NUMA1": "sim-002"}
        assert numa.parents() == {"sim-001": None, "sim-002": None, "sim-003": None} | cells | more
        assert set(numa.provider_data("sim-001", "inventories")) == {"DISK_GB"}
        memory = numa.provider_data("sim-001_NUMA1", "inventories")["MEMORY_MB"]
        assert (memory["total"], memory["reserved"]) == (16384, 256)
        assert numa.provider_data("sim-002_NUMA0", "traits") == ["HW_NUMA_ROOT"]
        assert "HW_ARCH_AARCH64" in numa.provider_data("sim-003", "traits")

        specs = {"resources1:VCPU": "4", "resources1:MEMORY_MB": "1024", "trait1:HW_NUMA_ROOT": "required"}
        server = numa.boot(numa.flavor(**specs | {"resources:VCPU": "0", "resources:MEMORY_MB": "0"}))
        allocations = numa.allocations(server)
        cell = next(name for name in allocations if "NUMA" in name)
        assert allocations == {cell.split("_")[0]: {"DISK_GB": 5}, cell: {"VCPU": 4, "MEMORY_MB": 1024}}


def test_server_is_allocated_devices_of_nested_providers(tmp_path: Path) -> None:
    with shaped(tmp_path, "vgpu.toml") as vgpu:
        assert vgpu.parents() == {
            "sim-001": None,
            "sim-001_PGPU0": "sim-001",
            "sim-001_PGPU1": "sim-001",
            "sim-002": None,
            "sim-002_NUMA0": "sim-002",
            "sim-002_NUMA1": "sim-002",
            "sim-002_NUMA0_FPGA": "sim-002_NUMA0",
            "sim-002_NUMA1_FPGA": "sim-002_NUMA1",
        }
        assert vgpu.provider_data("sim-001_PGPU0", "inventories")["VGPU"]["max_unit"] == 1

        plain = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 5}
        allocations = vgpu.allocations(
            vgpu.boot(vgpu.flavor(**{"resources:VGPU": "1", "trait:CUSTOM_NVIDIA_T4": "required"}))
        )
        assert allocations.pop("sim-001") == plain
        assert list(allocations.values()) == [{"VGPU": 1}]
        apart = {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"}
        assert vgpu.allocations(vgpu.boot(vgpu.flavor(**apart))) == {
            "sim-001": plain,
            "sim-001_PGPU0": {"VGPU": 1},
            "sim-001_PGPU1": {"VGPU": 1},
        }
        allocations = vgpu.allocations(vgpu.boot(vgpu.flavor(**{"resources:CUSTOM_FPGA": "1"})))
        assert allocations["sim-002"] == {"DISK_GB": 5}
        assert [amounts for name, amounts in allocations.items() if name.endswith("FPGA")] == [{"CUSTOM_FPGA": 1}]


def test_server_is_allocated_shared_disk(tmp_path: Path) -> None:
    with shaped(tmp_path, "shared-disk.yaml") as cloud:
        assert cloud.parents() == {f"sim-00{number}": None for number in range(1, 5)} | {"san": None}
        aggregates = {name: cloud.provider_data(name, "aggregates") for name in cloud.providers()}
        assert aggregates["sim-001"] == aggregates["sim-003"] == aggregates["san"] != []
        assert aggregates["sim-004"] == []
        assert cloud.provider_data("san", "traits") == ["MISC_SHARES_VIA_AGGREGATE", "STORAGE_DISK_SSD"]

        server = cloud.boot(cloud.flavor(), host="sim-002")
        assert cloud.allocations(server) == {"sim-002": {"VCPU": 2, "MEMORY_MB": 1024}, "san": {"DISK_GB": 5}}
        cloud.delete(server)


def test_allocations_follow_change_of_shape(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(
        '[[shape]]\nname = "cells"\ninventory = { DISK_GB = 100 }\n'
        '[[shape.nested]]\nname = "NUMA"\ncount = 2\ninventory = { VCPU = 8, MEMORY_MB = 8192 }\n'
    )
    with CloudProcess(tmp_path / "data", "--hosts", "1") as cloud:
        flat = Shaped(cloud)
        server = flat.boot(flat.flavor())
        before = flat.allocations(server)
        assert list(before) == ["sim-001"]
        cloud.stop()
        cloud.start("--host-shape", str(path))
        nested = Shaped(cloud)
        assert nested.allocations(server) == {
            "sim-001": {"DISK_GB": 5},
            "sim-001_NUMA0": {"VCPU": 2, "MEMORY_MB": 1024},
        }
        cloud.stop()
        found = kilonova("doctor", "--data", str(cloud.data))
        assert found.returncode == 0, found.stdout
        cloud.start()
        assert Shaped(cloud).allocations(server) == before
        Shaped(cloud).delete(server)
