from __future__ import annotations

import pytest

from kilonova.scheduler.machines import Machine
from tests.scheduler.filters.support import Said, idle, passing, said
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(
        1,
        machine=Machine("QEMU", 6_002_000, '{"arch": "x86_64", "features": ["avx", "aes"], "topology": {"cores": 8}}'),
    ),
    host(2, machine=Machine("QEMU", 9_000_000, '{"arch": "x86_64", "features": ["aes"], "topology": {"cores": 16}}')),
    host(3, machine=Machine("lxc", 1_000_000, "{}"), used={"MEMORY_MB": 8000}),
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
def test_facts_are_compared(spec: str, rule: str, expected: set[str]) -> None:
    assert passing("capabilities", HOSTS, extra_specs={spec: rule}) == expected


def test_other_specs_are_no_matter() -> None:
    assert idle("capabilities", HOSTS)
    assert idle("capabilities", HOSTS, extra_specs={"hypervisor_type": "x", "hw:cpu_policy": "shared"})


def test_it_says_what_a_host_has() -> None:
    words = said("capabilities", HOSTS, 1, extra_specs={"capabilities:cpu_info:features": "<in> avx"})
    assert words == Said("lack capability cpu_info:features <in> avx", "cpu_info:features <in> avx", "['aes']")
    assert said("capabilities", HOSTS, 2, extra_specs={"capabilities:free_ram_mb": ">= 1024"}).have == "192"
    assert said("capabilities", HOSTS, extra_specs={"capabilities:magic": "1"}).have == "nothing of that name"
