from __future__ import annotations

from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing, set_metadata
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    """h1 and h2 are reserved, h4 is in an aggregate without projects."""
    found = snapshot(
        host(1, aggregates=frozenset({1})),
        host(2, aggregates=frozenset({1, 2})),
        host(3),
        host(4, aggregates=frozenset({3})),
    )
    return set_metadata(
        found, {1: {"filter_tenant_id": "p1, p2"}, 2: {"filter_tenant_id_more": "p3"}, 3: {"ssd": "true"}}
    )


def test_reserved_hosts_accept_only_their_projects() -> None:
    assert passing("tenant_isolation", hosts(), project_id="p1") == {"h1", "h2", "h3", "h4"}
    assert passing("tenant_isolation", hosts(), project_id="p3") == {"h2", "h3", "h4"}
    assert passing("tenant_isolation", hosts(), project_id="p4") == {"h3", "h4"}
    assert passing("tenant_isolation", hosts()) == {"h3", "h4"}


def test_changed_reservation_applies_immediately() -> None:
    found = hosts()
    assert passing("tenant_isolation", found, project_id="p4") == {"h3", "h4"}
    found.aggregates.set_metadata(2, {3: {"filter_tenant_id": "p5"}, 1: {"filter_tenant_id": "p4"}})
    assert passing("tenant_isolation", found, project_id="p4") == {"h1", "h2", "h3"}


def test_reason_names_projects_only_in_have() -> None:
    explanation = Explanation("reserved for other projects", "a host for project p4", "reserved for p1, p2, p3")
    assert explain("tenant_isolation", hosts(), 1, project_id="p4") == explanation


def test_without_reservations_nothing_is_checked() -> None:
    assert is_idle("tenant_isolation", snapshot(host(1)), project_id="p1")
