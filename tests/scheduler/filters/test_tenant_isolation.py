from __future__ import annotations

from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Said, describe, idle, passing, said
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    """h1 and h2 are reserved, h4 is in an aggregate that says nothing of projects."""
    found = snapshot(
        host(1, aggregates=frozenset({1})),
        host(2, aggregates=frozenset({1, 2})),
        host(3),
        host(4, aggregates=frozenset({3})),
    )
    return describe(found, {1: {"filter_tenant_id": "p1, p2"}, 2: {"filter_tenant_id_more": "p3"}, 3: {"ssd": "true"}})


def test_reserved_hosts_take_only_their_projects() -> None:
    assert passing("tenant_isolation", hosts(), project_id="p1") == {"h1", "h2", "h3", "h4"}
    assert passing("tenant_isolation", hosts(), project_id="p3") == {"h2", "h3", "h4"}
    assert passing("tenant_isolation", hosts(), project_id="p4") == {"h3", "h4"}
    assert passing("tenant_isolation", hosts()) == {"h3", "h4"}


def test_a_new_reservation_counts_at_once() -> None:
    found = hosts()
    assert passing("tenant_isolation", found, project_id="p4") == {"h3", "h4"}
    found.aggregates.describe(2, {3: {"filter_tenant_id": "p5"}, 1: {"filter_tenant_id": "p4"}})
    assert passing("tenant_isolation", found, project_id="p4") == {"h1", "h2", "h3"}


def test_it_names_nobody_but_in_what_a_host_has() -> None:
    words = Said("reserved for other projects", "a host for project p4", "reserved for p1, p2, p3")
    assert said("tenant_isolation", hosts(), 1, project_id="p4") == words


def test_without_reservations_there_is_nothing_to_check() -> None:
    assert idle("tenant_isolation", snapshot(host(1)), project_id="p1")
