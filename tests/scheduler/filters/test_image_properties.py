from __future__ import annotations

import pytest

from kilonova.scheduler.machines import Machine
from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(1, machine=Machine("QEMU", 6_002_000, '{"arch": "x86_64"}')),
    host(2, machine=Machine("QEMU", 9_000_001, '{"arch": "aarch64"}')),
    host(3, machine=Machine("lxc", 1_000_000, '{"arch": "x86_64"}')),
)


@pytest.mark.parametrize(
    "properties, expected",
    [
        ({"hw_architecture": "x86_64"}, {"h1", "h3"}),
        ({"architecture": "arm64"}, {"h2"}),
        ({"architecture": "ppc64"}, set()),
        ({"hypervisor_type": "kvm"}, {"h1", "h2"}),
        ({"img_hv_type": "lxc"}, {"h3"}),
        ({"hypervisor_version_requires": ">=6.2"}, {"h1", "h2"}),
        ({"hypervisor_version_requires": ">=6.0, <7"}, {"h1"}),
        ({"hypervisor_version_requires": "==9.0.1"}, {"h2"}),
        ({"hypervisor_version_requires": "the newest"}, set()),
        ({"vm_mode": "hvm"}, {"h1", "h2"}),
        ({"hw_vm_mode": "exe", "architecture": "amd64"}, {"h3"}),
        ({"architecture": "x86_64", "hypervisor_type": "qemu"}, {"h1"}),
    ],
)
def test_hosts_must_be_what_the_image_is_made_for(properties: dict[str, str], expected: set[str]) -> None:
    assert passing("image_properties", HOSTS, image_properties=properties) == expected


def test_other_properties_are_no_matter() -> None:
    assert idle("image_properties", HOSTS)
    assert idle("image_properties", HOSTS, image_properties={"os_type": "linux", "architecture": ""})


def test_a_simulated_hypervisor_stands_for_any() -> None:
    hosts = snapshot(host(1, machine=Machine("kilonova-sim", 1_000_000, '{"arch": "x86_64"}')))
    assert idle("image_properties", hosts, image_properties={"hypervisor_type": "kvm", "vm_mode": "hvm"})
    assert passing("image_properties", hosts, image_properties={"architecture": "aarch64"}) == set()


@pytest.mark.parametrize(
    "row, properties, words",
    [
        (1, {"architecture": "amd64"}, Said("not of architecture x86_64", "x86_64", "aarch64")),
        (2, {"hypervisor_type": "qemu"}, Said("not of hypervisor type qemu", "qemu", "lxc")),
        (0, {"hypervisor_version_requires": ">7"}, Said("not of hypervisor version >7", ">7", "6.2.0")),
        (2, {"vm_mode": "hvm"}, Said("without vm mode hvm", "hvm", "exe")),
    ],
)
def test_it_says_what_a_host_is(row: int, properties: dict[str, str], words: Said) -> None:
    assert said("image_properties", HOSTS, row, image_properties=properties) == words
