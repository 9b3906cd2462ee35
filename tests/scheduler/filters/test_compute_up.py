from __future__ import annotations

from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, passing
from tests.scheduler.support import host, snapshot

UP = "a compute service that is up"
ENABLED = "an enabled compute service"


def hosts() -> Hosts:
    found = snapshot(
        host(1),
        host(2, disabled=True, disabled_reason="new disk"),
        host(3, forced_down=True),
        host(4),
        host(5, traits=frozenset({"COMPUTE_STATUS_DISABLED"})),
        host(6, disabled=True, forced_down=True),
    )
    found.set_down_services([4])
    return found


def test_only_enabled_hosts_that_are_up_pass() -> None:
    assert passing("compute_up", hosts()) == {"h1"}


def test_forced_request_passes_disabled_hosts_but_not_down_hosts() -> None:
    assert passing("compute_up", hosts(), host="h2", forced=True) == {"h1", "h2", "h5"}
    assert explain("compute_up", hosts(), 5, forced=True).text == "forced down"


def test_compute_up_reasons() -> None:
    assert explain("compute_up", hosts(), 1) == Explanation("disabled", ENABLED, "disabled: new disk")
    assert explain("compute_up", hosts(), 2) == Explanation("forced down", UP, "forced down by an administrator")
    assert explain("compute_up", hosts(), 3) == Explanation("down", UP, "last heartbeat too old")
    assert explain("compute_up", hosts(), 4) == Explanation("disabled", ENABLED, "disabled")
    assert explain("compute_up", hosts(), 5).text == "disabled"
