from __future__ import annotations

import pytest

from kilonova.scheduler.hypervisor_columns import HypervisorKind
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(
        1,
        hypervisor_kind=HypervisorKind(
            "QEMU", 6_002_000, '{"arch": "x86_64", "features": ["avx", "aes"], "topology": {"cores": 8}}'
        ),
    ),
    host(
        2,
        hypervisor_kind=HypervisorKind(
            "QEMU", 9_000_000, '{"arch": "x86_64", "features": ["aes"], "topology": {"cores": 16}}'
        ),
    ),
    host(3, hypervisor_kind=HypervisorKind("lxc", 1_000_000, "{}"), used={"MEMORY_MB": 8000}),
)


@pytest.mark.parametrize(
    "spec, rule, expected",
    [
        ("capabilities:hypervisor_type", "QEMU", {"h1", "h2"}),
        ("capabilities:hypervisor_type", "s!= QEMU", {"h3"}),
        ("capabilities:hypervisor_version", ">= 9000000", {"h2"}),
        ("capabilities:cpu_info:features", "<in> avx", {"h1"}),
        ("capabilities:cpu_info:features", "<all-in> aes avx", {"h1"}),
        ("capabilities:cpu_info:topology:cores", ">= 8", {"h1", "h2"}),
        ("capabilities:cpu_info:topology:cores:more", "1", set()),
        ("capabilities:hypervisor_hostname", "<or> node1 <or> node3", {"h1", "h3"}),
        ("capabilities:free_ram_mb", ">= 1024", {"h1", "h2"}),
        ("capabilities:no_such_thing", "1", set()),
    ],
)
def test_host_attributes_are_compared(spec: str, rule: str, expected: set[str]) -> None:
    assert passing("capabilities", HOSTS, extra_specs={spec: rule}) == expected


def test_specs_of_other_scopes_are_ignored() -> None:
    assert is_idle("capabilities", HOSTS)
    assert is_idle("capabilities", HOSTS, extra_specs={"hypervisor_type": "x", "hw:cpu_policy": "shared"})


def test_capabilities_reason() -> None:
    explanation = explain("capabilities", HOSTS, 1, extra_specs={"capabilities:cpu_info:features": "<in> avx"})
    assert explanation == Explanation(
        "lack capability cpu_info:features <in> avx", "cpu_info:features <in> avx", "['aes']"
    )
    assert explain("capabilities", HOSTS, 2, extra_specs={"capabilities:free_ram_mb": ">= 1024"}).have == "192"
    assert explain("capabilities", HOSTS, extra_specs={"capabilities:magic": "1"}).have == "no such attribute"
