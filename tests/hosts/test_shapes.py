"""Hosts of every shape: the file that describes them, and clouds that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.sim.facts import Body, facts
from kilonova.hosts.drivers.sim.shapes import Shape, ShapeError, Shapes, Sharing, load
from kilonova.hosts.embedded import EmbeddedConfig
from tests.support.process import Client, Cloud, NotStarted, kilonova

EXAMPLES = Path(__file__).parents[2] / "examples" / "host-shapes"


# The file


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir()))
def test_every_example_is_understood_and_shown(example: str) -> None:
    shapes = load(EXAMPLES / example)
    done = kilonova("sim", "shape", str(EXAMPLES / example))
    assert done.returncode == 0, done.stderr
    for shape in shapes.shape:
        assert f"{shape.name}: {shape.hosts} host" in done.stdout
        assert all(f"HOST_{part.name}" in done.stdout for part in shape.providers())
    assert all(f"{one.name}: shared by" in done.stdout for one in shapes.sharing)


def test_shapes_are_given_out_in_order_and_the_rest_takes_what_is_left(tmp_path: Path) -> None:
    rest, one, two = Shape(name="rest"), Shape(name="one", hosts=1), Shape(name="two", hosts=2)
    names = [f"h{number}" for number in range(5)]
    assigned = Shapes(shape=[rest, one, two]).assign(names)
    assert [assigned[name].name for name in names] == ["one", "two", "two", "rest", "rest"]
    assert list(Shapes(shape=[one, two]).assign(names)) == ["h0", "h1", "h2"]
    config = EmbeddedConfig(directory=tmp_path, hosts=1, shapes=Shapes(shape=[rest, one, two]))
    assert len(config.bodies()) == 4, "as many hosts as it takes to show every shape"


def test_who_shares() -> None:
    assert Sharing(name="san").has("sim-001", "any")
    by_shape = Sharing(name="san", shapes=["diskless"])
    assert by_shape.has("sim-001", "diskless")
    assert not by_shape.has("sim-001", "")
    by_name = Sharing(name="san", hosts=["sim-00[12]"])
    assert [by_name.has(host, "") for host in ("sim-001", "sim-002", "sim-003")] == [True, True, False]


def test_a_host_tells_what_its_shape_says() -> None:
    told = facts("arm-1", Body(shape=load(EXAMPLES / "numa.toml").shape[1]))
    assert (told.hypervisor_type, told.hypervisor_version) == ("QEMU", 8002000)
    assert (told.cpu_info["arch"], told.cpu_info["model"]) == ("aarch64", "cortex-a72")
    assert {"COMPUTE_ARCH_AARCH64", "HW_ARCH_AARCH64"} <= set(told.traits)
    assert not any("X86" in trait for trait in told.traits)
    cells = facts("numa-1", Body(shape=load(EXAMPLES / "numa.toml").shape[0]))
    assert [part.name for part in cells.nested] == ["NUMA0", "NUMA1"]
    assert cells.nested[0].inventory["VCPU"].allocation_ratio == 2.0
    bare = Shape(name="bare", inventory={"VCPU": 1}, without_traits=["COMPUTE_IMAGE_TYPE_QCOW2"])
    assert "COMPUTE_IMAGE_TYPE_QCOW2" not in facts("bare-1", Body(shape=bare)).traits


HOST = '[[shape]]\nname = "a"\n'
OK = HOST + "inventory = { VCPU = 1 }\n"


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("[[shape", "Expected ']]' at the end"),
        ("", "shape: a file of shapes has at least one"),
        ("colour = 1", "Object contains unknown field `colour`"),
        (OK + "speed = 3", "shape[0]: Object contains unknown field `speed`"),
        (HOST, "shape[0].inventory: the host has nothing at all"),
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
        (OK + OK, "shape: two of them are named 'a'"),
        (OK + OK.replace('"a"', '"b"'), "shape: only one shape can do without `hosts`"),
        (OK + '[[shape.nested]]\nname = "a b"', "shape[0].nested[0].name: 'a b' is no name"),
        (OK + '[[shape.nested]]\nname = "X"\ncount = 0', "shape[0].nested[0].count: 0 is not between 1"),
        (OK + '[[shape.nested]]\nname = "X"\n' * 2, "shape[0].nested: two of them are named 'X'"),
        (
            OK + '[[shape.nested]]\nname = "X"\ncount = 900\n[[shape.nested.nested]]\nname = "Y"\ncount = 900',
            "shape[0].nested: these are more than 1000 providers",
        ),
        (OK + '[[sharing]]\nname = "san"', "sharing[0].inventory: nothing to share"),
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
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(text)
    with pytest.raises(ShapeError) as refused:
        load(path)
    assert str(refused.value).startswith(f"host shapes {path}: ")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("no.toml", None, "No such file or directory"),
        ("bytes.toml", b"\xff\xfe\x00", "not a text file"),
        ("bad.yaml", b"shape: [", "at line 1"),
        ("list.yaml", b"- 1", "Expected `object`, got `array`"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ShapeError, match=complaint):
        load(tmp_path / name)


def test_a_bad_file_is_told_and_nothing_starts(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(HOST + "inventory = { CPUS = 1 }")
    with pytest.raises(NotStarted) as refused:
        Cloud(tmp_path / "data", "--host-shape", str(path)).start()
    assert f"host shapes {path}: shape[0].inventory.CPUS: neither" in refused.value.output
    assert "Traceback" not in refused.value.output
    assert kilonova("sim", "shape", str(path)).returncode == 1


# Clouds


class Shaped:
    """A cloud of shaped hosts, seen through placement's API."""

    def __init__(self, cloud: Cloud) -> None:
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

    def of(self, name: str, what: str) -> Any:
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

    def held(self, server: str) -> dict[str, dict[str, int]]:
        """What the server has, by providers' names."""
        names = {one["uuid"]: name for name, one in self.providers().items()}
        allocations = self.get(f"/allocations/{server}")["allocations"]
        return {names[uuid]: one["resources"] for uuid, one in allocations.items()}


@contextmanager
def shaped(directory: Path, example: str) -> Iterator[Shaped]:
    with Cloud(directory / "data", "--hosts", "1", "--host-shape", str(EXAMPLES / example)) as cloud:
        yield Shaped(cloud)


def test_a_server_has_its_processors_and_memory_from_one_cell(tmp_path: Path) -> None:
    with shaped(tmp_path, "numa.toml") as numa:
        cells = {"sim-001_NUMA0": "sim-001", "sim-001_NUMA1": "sim-001"}
        more = {"sim-002_NUMA0": "sim-002", "sim-002_NUMA1": "sim-002"}
        assert numa.parents() == {"sim-001": None, "sim-002": None, "sim-003": None} | cells | more
        assert set(numa.of("sim-001", "inventories")) == {"DISK_GB"}
        memory = numa.of("sim-001_NUMA1", "inventories")["MEMORY_MB"]
        assert (memory["total"], memory["reserved"]) == (16384, 256)
        assert numa.of("sim-002_NUMA0", "traits") == ["HW_NUMA_ROOT"]
        assert "HW_ARCH_AARCH64" in numa.of("sim-003", "traits")

        specs = {"resources1:VCPU": "4", "resources1:MEMORY_MB": "1024", "trait1:HW_NUMA_ROOT": "required"}
        server = numa.boot(numa.flavor(**specs | {"resources:VCPU": "0", "resources:MEMORY_MB": "0"}))
        held = numa.held(server)
        cell = next(name for name in held if "NUMA" in name)
        assert held == {cell.split("_")[0]: {"DISK_GB": 5}, cell: {"VCPU": 4, "MEMORY_MB": 1024}}


def test_a_server_has_devices_of_one_card_or_several(tmp_path: Path) -> None:
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
        assert vgpu.of("sim-001_PGPU0", "inventories")["VGPU"]["max_unit"] == 1

        plain = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 5}
        held = vgpu.held(vgpu.boot(vgpu.flavor(**{"resources:VGPU": "1", "trait:CUSTOM_NVIDIA_T4": "required"})))
        assert held.pop("sim-001") == plain
        assert list(held.values()) == [{"VGPU": 1}]
        apart = {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"}
        assert vgpu.held(vgpu.boot(vgpu.flavor(**apart))) == {
            "sim-001": plain,
            "sim-001_PGPU0": {"VGPU": 1},
            "sim-001_PGPU1": {"VGPU": 1},
        }
        held = vgpu.held(vgpu.boot(vgpu.flavor(**{"resources:CUSTOM_FPGA": "1"})))
        assert held["sim-002"] == {"DISK_GB": 5}
        assert [amounts for name, amounts in held.items() if name.endswith("FPGA")] == [{"CUSTOM_FPGA": 1}]


def test_a_server_has_a_share_of_a_shared_disk(tmp_path: Path) -> None:
    with shaped(tmp_path, "shared-disk.yaml") as cloud:
        assert cloud.parents() == {f"sim-00{number}": None for number in range(1, 5)} | {"san": None}
        aggregates = {name: cloud.of(name, "aggregates") for name in cloud.providers()}
        assert aggregates["sim-001"] == aggregates["sim-003"] == aggregates["san"] != []
        assert aggregates["sim-004"] == []
        assert cloud.of("san", "traits") == ["MISC_SHARES_VIA_AGGREGATE", "STORAGE_DISK_SSD"]

        server = cloud.boot(cloud.flavor(), host="sim-002")
        assert cloud.held(server) == {"sim-002": {"VCPU": 2, "MEMORY_MB": 1024}, "san": {"DISK_GB": 5}}
        cloud.delete(server)


def test_servers_outlive_a_change_of_shape(tmp_path: Path) -> None:
    path = tmp_path / "shapes.toml"
    path.write_text(
        '[[shape]]\nname = "cells"\ninventory = { DISK_GB = 100 }\n'
        '[[shape.nested]]\nname = "NUMA"\ncount = 2\ninventory = { VCPU = 8, MEMORY_MB = 8192 }\n'
    )
    with Cloud(tmp_path / "data", "--hosts", "1") as cloud:
        flat = Shaped(cloud)
        server = flat.boot(flat.flavor())
        before = flat.held(server)
        assert list(before) == ["sim-001"]
        cloud.stop()
        cloud.start("--host-shape", str(path))
        nested = Shaped(cloud)
        assert nested.held(server) == {"sim-001": {"DISK_GB": 5}, "sim-001_NUMA0": {"VCPU": 2, "MEMORY_MB": 1024}}
        cloud.stop()
        found = kilonova("doctor", "--data", str(cloud.data))
        assert found.returncode == 0, found.stdout
        cloud.start()
        assert Shaped(cloud).held(server) == before
        Shaped(cloud).delete(server)
