from __future__ import annotations

import pytest

from kilonova.scheduler.hypervisor_columns import HypervisorKind
from tests.scheduler.filters.support import explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(1, hypervisor_kind=HypervisorKind("QEMU", 6_002_000)),
    host(2, hypervisor_kind=HypervisorKind("lxc"), used={"MEMORY_MB": 8000}),
    host(3),
)


@pytest.mark.parametrize(
    "query, expected",
    [
        ('[">=", "$free_ram_mb", 1024]', {"h1", "h3"}),
        ('["and", [">=", "$free_ram_mb", 1024], ["=", "$hypervisor_type", "QEMU"]]', {"h1"}),
        ('["or", ["<", "$free_ram_mb", 1024], ["=", "$host", "h3"]]', {"h2", "h3"}),
        ('["not", ["in", "$hypervisor_hostname", "node1", "node2"]]', {"h3"}),
        ([">", "$vcpus_total", 7], {"h1", "h2", "h3"}),
        ('["<", "$hypervisor_type", 7]', set()),
    ],
)
def test_query_selects_hosts(query: object, expected: set[str]) -> None:
    assert passing("json_query", HOSTS, hints={"query": query}) == expected


@pytest.mark.parametrize(
    "query",
    ["[", "7", "[]", '["="]', '["=", "$magic", 1]', '["~", "$host", "h1"]', '["=", "host", "h1"]', '["and", 1]'],
)
def test_malformed_query_rejects_all_hosts(query: str) -> None:
    assert passing("json_query", HOSTS, hints={"query": query}) == set()


def test_too_deeply_nested_query_rejects_all_hosts() -> None:
    deep = '["not", ' * 1000 + '["=", "$host", "h1"]' + "]" * 1000
    assert passing("json_query", HOSTS, hints={"query": deep}) == set()


def test_json_query_reason() -> None:
    assert is_idle("json_query", HOSTS)
    explanation = explain("json_query", HOSTS, 1, hints={"query": '[">=", "$free_ram_mb", 1024]'})
    assert (explanation.text, explanation.need) == ("not what the hint query asks for", '[">=", "$free_ram_mb", 1024]')
    assert "free_ram_mb=192" in explanation.have
