from __future__ import annotations

import pytest

from kilonova.scheduler.hypervisor_columns import HypervisorKind
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(1, hypervisor_kind=HypervisorKind("QEMU", 6_002_000, '{"arch": "x86_64"}')),
    host(2, hypervisor_kind=HypervisorKind("QEMU", 9_000_001, '{"arch": "aarch64"}')),
    host(3, hypervisor_kind=HypervisorKind("lxc", 1_000_000, '{"arch": "x86_64"}')),
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
def test_hosts_must_match_image_properties(properties: dict[str, str], expected: set[str]) -> None:
    assert passing("image_properties", HOSTS, image_properties=properties) == expected


def test_other_properties_are_ignored() -> None:
    assert is_idle("image_properties", HOSTS)
    assert is_idle("image_properties", HOSTS, image_properties={"os_type": "linux", "architecture": ""})


def test_simulated_hypervisor_matches_any_type() -> None:
    hosts = snapshot(host(1, hypervisor_kind=HypervisorKind("kilonova-sim", 1_000_000, '{"arch": "x86_64"}')))
    assert is_idle("image_properties", hosts, image_properties={"hypervisor_type": "kvm", "vm_mode": "hvm"})
    assert passing("image_properties", hosts, image_properties={"architecture": "aarch64"}) == set()


@pytest.mark.parametrize(
    "row, properties, explanation",
    [
        (1, {"architecture": "amd64"}, Explanation("not of architecture x86_64", "x86_64", "aarch64")),
        (2, {"hypervisor_type": "qemu"}, Explanation("not of hypervisor type qemu", "qemu", "lxc")),
        (0, {"hypervisor_version_requires": ">7"}, Explanation("not of hypervisor version >7", ">7", "6.2.0")),
        (2, {"vm_mode": "hvm"}, Explanation("without vm mode hvm", "hvm", "exe")),
    ],
)
def test_image_properties_reasons(row: int, properties: dict[str, str], explanation: Explanation) -> None:
    assert explain("image_properties", HOSTS, row, image_properties=properties) == explanation
