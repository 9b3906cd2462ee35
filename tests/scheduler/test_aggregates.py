"""Members and metadata of host aggregates."""

from __future__ import annotations

import numpy as np

from kilonova.scheduler.aggregates import Aggregates
from tests.scheduler.support import host, names, snapshot


def rows(aggregates: Aggregates, *numbers: int) -> list[int]:
    return np.flatnonzero(aggregates.union(numbers)).tolist()


def test_members_follow_updates_of_hosts() -> None:
    hosts = snapshot(host(1, aggregates=frozenset({7})), host(2, aggregates=frozenset({7, 8})), host(3))
    found = hosts.aggregates
    assert names(hosts, found.union([7])) == {"h1", "h2"}
    assert names(hosts, found.union([8, 9])) == {"h2"}
    hosts.put(host(1, aggregates=frozenset({8})))
    assert names(hosts, found.union([7])) == {"h2"}
    assert names(hosts, found.union([8])) == {"h1", "h2"}
    hosts.drop(2)
    assert names(hosts, found.union([7, 8])) == {"h1"}
    hosts.put(host(9))  # reuses the row of the removed host
    assert names(hosts, found.union([7, 8])) == {"h1"}


def test_union_of_large_and_small_aggregates() -> None:
    """A large aggregate has a mask of its own."""
    found = Aggregates(256)
    for row in range(256):
        found.assign(row, frozenset({1, 100 + row}))
    assert rows(found, 1) == list(range(256))
    assert rows(found, 100, 105) == [0, 5]
    found.assign(3, frozenset())
    found.grow(256)
    found.assign(300, frozenset({1}))
    assert rows(found, 1) == [*range(3), *range(4, 256), 300]
    found.assign(300, frozenset())
    assert 300 not in rows(found, 1)


def test_cached_value_is_kept_until_an_aggregate_changes() -> None:
    found = Aggregates(256)
    found.assign(0, frozenset({1}))
    found.set_metadata(1, {1: {"a": "x"}})
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return made

    for _ in range(3):
        found.keep("it", make)
    assert len(made) == 1
    found.assign(0, frozenset({1}))
    found.set_metadata(2, {1: {"a": "x"}})
    found.keep("it", make)
    assert len(made) == 1
    found.set_metadata(3, {1: {"a": "y"}})
    found.keep("it", make)
    assert len(made) == 2
    found.assign(1, frozenset({1}))
    found.keep("it", make)
    assert len(made) == 3


def test_earlier_read_does_not_replace_newer_metadata() -> None:
    found = Aggregates(256)
    found.assign(0, frozenset({1}))
    found.set_metadata(2, {1: {"a": "new"}})
    found.set_metadata(1, {1: {"a": "old"}})
    assert found.having("a") == {1: "new"}
    assert found.metadata_of_row(0) == [{"a": "new"}]


def test_numbers_returns_lowest_value_of_a_hosts_aggregates() -> None:
    found = Aggregates(256)
    found.assign(0, frozenset({1}))
    found.assign(1, frozenset({1, 2}))
    found.assign(2, frozenset({3}))
    found.set_metadata(1, {1: {"n": "5"}, 2: {"n": "2.5"}, 3: {"n": "few"}})
    numbers = found.numbers("n")
    assert numbers is not None
    assert numbers[:2].tolist() == [5, 2.5]
    assert np.isnan(numbers[2:]).all()
    assert found.numbers("m") is None


def test_aggregate_without_hosts_is_removed() -> None:
    found = Aggregates(256)
    found.assign(0, frozenset({1}))
    found.set_metadata(1, {1: {"a": "x"}})
    found.assign(0, frozenset())
    assert list(found.metadata_keys()) == []
    assert rows(found, 1) == []
