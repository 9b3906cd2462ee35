from __future__ import annotations

import pytest

from kilonova.scheduler.machines import Machine
from tests.scheduler.filters.support import idle, passing, said
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(
    host(1, machine=Machine("QEMU", 6_002_000)), host(2, machine=Machine("lxc"), used={"MEMORY_MB": 8000}), host(3)
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
def test_an_expression_chooses(query: object, expected: set[str]) -> None:
    assert passing("json_query", HOSTS, hints={"query": query}) == expected


@pytest.mark.parametrize(
    "query",
    ["[", "7", "[]", '["="]', '["=", "$magic", 1]', '["~", "$host", "h1"]', '["=", "host", "h1"]', '["and", 1]'],
)
def test_what_cannot_be_read_chooses_nobody(query: str) -> None:
    assert passing("json_query", HOSTS, hints={"query": query}) == set()


def test_an_expression_nested_without_end_chooses_nobody() -> None:
    deep = '["not", ' * 1000 + '["=", "$host", "h1"]' + "]" * 1000
    assert passing("json_query", HOSTS, hints={"query": deep}) == set()


def test_it_says_what_it_looked_at() -> None:
    assert idle("json_query", HOSTS)
    words = said("json_query", HOSTS, 1, hints={"query": '[">=", "$free_ram_mb", 1024]'})
    assert (words.text, words.need) == ("not what the hint query asks for", '[">=", "$free_ram_mb", 1024]')
    assert "free_ram_mb=192" in words.have
