from __future__ import annotations

from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Said, passing, said
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
    found.set_silent([4])
    return found


def test_only_what_is_enabled_and_heard_of_passes() -> None:
    assert passing("compute_up", hosts()) == {"h1"}


def test_a_disabled_host_can_be_tried_out_by_force_but_none_that_is_down() -> None:
    assert passing("compute_up", hosts(), host="h2", forced=True) == {"h1", "h2", "h5"}
    assert said("compute_up", hosts(), 5, forced=True).text == "forced down"


def test_it_says_what_is_wrong() -> None:
    assert said("compute_up", hosts(), 1) == Said("disabled", ENABLED, "disabled: new disk")
    assert said("compute_up", hosts(), 2) == Said("forced down", UP, "forced down by an administrator")
    assert said("compute_up", hosts(), 3) == Said("down", UP, "not heard of for too long")
    assert said("compute_up", hosts(), 4) == Said("disabled", ENABLED, "disabled")
    assert said("compute_up", hosts(), 5).text == "disabled"
