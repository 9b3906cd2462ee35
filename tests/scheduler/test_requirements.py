"""Requirements from flavors, extra specs and image properties."""

from __future__ import annotations

import pytest

from kilonova.compute.servers.server import EmbeddedFlavor
from kilonova.placement.candidates.model import RequestGroup
from kilonova.scheduler import Request
from kilonova.scheduler.requirements import HostRequirements, host_requirements

SIZES = {"vcpus": 4, "ram": 2048, "disk": 20, "ephemeral": 0, "swap": 0}
PLAIN = {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 20}


def requirements(
    specs: dict[str, str] | None = None, image: dict[str, str] | None = None, **sizes: int
) -> HostRequirements:
    return host_requirements(EmbeddedFlavor("f", **{**SIZES, **sizes}, extra_specs=specs or {}), image or {})


def one(*traits: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset((trait,)) for trait in traits)


def test_flavor_without_extra_specs_requires_its_sizes() -> None:
    found = requirements()
    assert Request(**found) == Request(resources=PLAIN)
    assert requirements(ephemeral=5, swap=1025)["resources"] == PLAIN | {"DISK_GB": 27}
    assert requirements(disk=0)["resources"] == {"VCPU": 4, "MEMORY_MB": 2048}


@pytest.mark.parametrize(
    "specs, expected",
    [
        ({"resources:VCPU": "2"}, PLAIN | {"VCPU": 2}),
        ({"resources:DISK_GB": "0"}, {"VCPU": 4, "MEMORY_MB": 2048}),
        ({"resources:CUSTOM_FPGA": "1"}, PLAIN | {"CUSTOM_FPGA": 1}),
        ({"resources:CUSTOM_FPGA": "0"}, PLAIN),
        ({"hw:cpu_policy": "shared"}, PLAIN),
        ({"hw:cpu_policy": "dedicated"}, {"PCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 20}),
        ({"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"}, {"PCPU": 5} | PLAIN | {"VCPU": 0}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0-1"}, PLAIN | {"VCPU": 2, "PCPU": 2}),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-3,^2"}, PLAIN | {"VCPU": 1, "PCPU": 3}),
        ({"hw:mem_encryption": "True"}, PLAIN | {"MEM_ENCRYPTION_CONTEXT": 1}),
        ({"hw:numa_nodes": "2", "quota:cpu_shares": "9", "own": "x"}, PLAIN),
    ],
)
def test_extra_specs_change_required_resources(specs: dict[str, str], expected: dict[str, int]) -> None:
    found = requirements(specs)
    assert found["resources"] == {name: amount for name, amount in expected.items() if amount}
    assert found["extra_specs"] == specs


@pytest.mark.parametrize(
    "specs, image, required, forbidden",
    [
        ({"trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden"}, {}, {"CUSTOM_A"}, {"CUSTOM_B"}),
        ({"trait:CUSTOM_A": "required"}, {"trait:CUSTOM_C": "required"}, {"CUSTOM_A", "CUSTOM_C"}, set()),
        ({}, {"trait:CUSTOM_A": "forbidden", "os_type": "linux"}, set(), {"CUSTOM_A"}),
        ({"hw:cpu_thread_policy": "isolate"}, {}, set(), {"HW_CPU_HYPERTHREADING"}),
        ({}, {"hw_cpu_thread_policy": "require"}, {"HW_CPU_HYPERTHREADING"}, set()),
        ({"hw:tpm_version": "2.0"}, {}, {"COMPUTE_SECURITY_TPM_2_0"}, set()),
        ({"os:secure_boot": "required"}, {}, {"COMPUTE_SECURITY_UEFI_SECURE_BOOT"}, set()),
        ({"os:secure_boot": "optional"}, {}, set(), set()),
    ],
)
def test_extra_specs_and_image_properties_set_traits(
    specs: dict[str, str], image: dict[str, str], required: set[str], forbidden: set[str]
) -> None:
    found = requirements(specs, image)
    assert (found["required_traits"], found["forbidden_traits"]) == (required, forbidden)
    assert found["image_properties"] == image


def test_extra_specs_define_numbered_groups() -> None:
    found = requirements(
        {
            "resources1:VGPU": "1",
            "trait1:CUSTOM_FAST": "required",
            "trait1:CUSTOM_OLD": "forbidden",
            "resources_NET:SRIOV_NET_VF": "2",
            "group_policy": "isolate",
        }
    )
    assert found["resources"] == PLAIN
    assert found["isolate"] is True
    assert found["groups"] == {
        "1": RequestGroup(resources={"VGPU": 1}, required=one("CUSTOM_FAST"), forbidden=frozenset({"CUSTOM_OLD"})),
        "_NET": RequestGroup(resources={"SRIOV_NET_VF": 2}),
    }
    assert requirements({"resources1:VGPU": "1"})["isolate"] is False


def test_same_subtree_allows_group_without_resources() -> None:
    found = requirements(
        {"resources_A:VGPU": "1", "trait_B:CUSTOM_CELL": "required", "same_subtree": "_A, _B", "group_policy": "none"}
    )
    assert found["same_subtree"] == (frozenset({"_A", "_B"}),)
    assert found["groups"]["_B"] == RequestGroup(required=one("CUSTOM_CELL"))


@pytest.mark.parametrize(
    "specs, named",
    [
        ({"resources:VCPU": "two"}, "resources:VCPU"),
        ({"resources:VCPU": "-1"}, "resources:VCPU"),
        ({"resources:vcpu": "1"}, "resources:vcpu"),
        ({"resources2:": "1"}, "resources2:"),
        ({"trait:CUSTOM_A": "yes"}, "trait:CUSTOM_A"),
        ({"trait:custom": "required"}, "trait:custom"),
        ({"trait1:CUSTOM_A": "required"}, "trait1:"),
        ({"resources1:VGPU": "1", "resources2:VGPU": "1"}, "group_policy"),
        ({"group_policy": "some"}, "group_policy"),
        ({"resources1:VGPU": "1", "same_subtree": "1,_X"}, "same_subtree"),
        ({"hw:cpu_policy": "mixed"}, "hw:cpu_dedicated_mask"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-3"}, "hw:cpu_dedicated_mask"),
        ({"hw:cpu_thread_policy": "isolate", "trait:HW_CPU_HYPERTHREADING": "required"}, "HW_CPU_HYPERTHREADING"),
    ],
)
def test_malformed_extra_spec_is_named_in_error(specs: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        requirements(specs)


def test_contradiction_of_flavor_and_image_is_rejected() -> None:
    with pytest.raises(ValueError, match="image property trait:CUSTOM_A"):
        requirements({"trait:CUSTOM_A": "forbidden"}, {"trait:CUSTOM_A": "required"})
