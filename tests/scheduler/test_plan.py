"""Plans: filters, weights, and their diagnosis."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kilonova.scheduler import Plan, Request, SchedulerConfig
from kilonova.scheduler.explain import Cause, Diagnosis, FilterResult
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, host, snapshot


def plan(hosts: Hosts, *, config: dict[str, Any] | None = None, **requested: Any) -> Plan:
    planner = Planner(SchedulerConfig(**{"jitter": 0.0} | (config or {})))
    return planner.plan(Request(**{"resources": TINY} | requested), hosts)


def chosen(outcome: Plan) -> list[str]:
    return [candidate.host for candidate in outcome.candidates]


# Sentences


def test_sentence_counts_each_host_once_by_its_first_reason() -> None:
    hosts = snapshot(
        *(host(n, zone="az2", used={"MEMORY_MB": 8192}) for n in range(1, 29)),
        *(host(n, zone="az1", used={"MEMORY_MB": 7000, "DISK_GB": 100}) for n in range(29, 40)),
        host(40, zone="az1", disabled=True),
    )
    outcome = plan(hosts, zone="az1", resources={"VCPU": 1, "MEMORY_MB": 2048, "DISK_GB": 1})
    assert outcome.candidates == ()
    assert outcome.diagnosis.sentence() == (
        "No valid host was found: 40 hosts: 28 not in zone az1, 11 lack 2048 MB memory, 1 disabled"
    )


@pytest.mark.parametrize(
    "hosts, requested, sentence",
    [
        ((), {}, "No valid host was found: there are no hosts"),
        ((host(1),), {"host": "h9"}, "No valid host was found: 1 host: 1 not the requested destination"),
        ((host(1),), {"resources": {"VCPU": 9}}, "No valid host was found: 1 host: 1 lacks 9 VCPU"),
        (
            (host(1, disabled=True), host(2, forced_down=True), host(3, disabled=True, forced_down=True)),
            {},
            "No valid host was found: 3 hosts: 2 disabled, 1 forced down",
        ),
        (
            (host(1), host(2, traits=frozenset({"X"}))),
            {"required_traits": frozenset({"X"}), "excluded_hosts": frozenset({"h2"})},
            "No valid host was found: 2 hosts: 1 excluded, 1 lacks trait X",
        ),
        (
            (host(1, used={"VCPU": 8, "DISK_GB": 100}), host(2, used={"DISK_GB": 100})),
            {},
            "No valid host was found: 2 hosts: 1 lacks 1 VCPU, 1 lacks 1 GB disk",
        ),
        ((host(1), host(2)), {}, "2 of 2 hosts fit"),
        ((host(1), host(2, disabled=True)), {}, "1 of 2 hosts fits: 1 disabled"),
    ],
)
def test_sentence_of_diagnosis(hosts: Any, requested: dict[str, Any], sentence: str) -> None:
    assert plan(snapshot(*hosts), **requested).diagnosis.sentence() == sentence


# Diagnosis


def test_diagnosis_counts_remaining_hosts_after_each_filter() -> None:
    hosts = snapshot(host(1, zone="az1"), host(2, zone="az1", used={"VCPU": 8}), host(3), host(4, disabled=True))
    diagnosis = plan(hosts, zone="az1").diagnosis
    assert diagnosis.hosts == 4
    assert diagnosis.filters == (
        FilterResult("compute_up", 1, 3, (Cause("disabled", 1),)),
        FilterResult("zone", 1, 2, (Cause("not in zone az1", 1),)),
        FilterResult("capacity", 1, 1, (Cause("lack 1 VCPU", 1),)),
    )
    assert diagnosis.left == 1


def test_filters_run_in_the_configured_order() -> None:
    hosts = snapshot(host(1, zone="az2", used={"VCPU": 8}))
    first = plan(hosts, config={"filters": ("capacity", "zone")}, zone="az1").diagnosis
    assert [(result.filter, result.rejected) for result in first.filters] == [("capacity", 1)]
    other = plan(hosts, config={"filters": ("zone", "capacity")}, zone="az1").diagnosis
    assert [(result.filter, result.rejected) for result in other.filters] == [("zone", 1)]


def test_without_filters_every_host_is_a_candidate() -> None:
    assert chosen(plan(snapshot(host(1, disabled=True)), config={"filters": ()})) == ["h1"]


def test_failed_plan_lists_need_and_have_for_every_reason() -> None:
    hosts = snapshot(*(host(n, zone="az2") for n in range(1, 200)), host(200, zone="az1", used={"MEMORY_MB": 8000}))
    diagnosis = plan(hosts, config={"max_listed_hosts": 10}, zone="az1").diagnosis
    assert len(diagnosis.rejections) == 10
    by_name = {rejection.host: rejection for rejection in diagnosis.rejections}
    full = by_name["h200"]
    assert (full.filter, full.need, full.have) == ("capacity", "512 MB memory", "192 MB memory free of 8192 MB memory")
    assert (by_name["h1"].filter, by_name["h1"].need, by_name["h1"].have) == ("zone", "az1", "az2")


def test_plan_survives_json_round_trip() -> None:
    for outcome in (plan(snapshot(host(1))), plan(snapshot(host(1)), host="h9")):
        text = msgspec.json.encode(outcome)
        assert msgspec.json.decode(text, type=Plan) == outcome
        assert isinstance(outcome.diagnosis, Diagnosis)


# Weights


def test_host_with_most_free_memory_comes_first() -> None:
    hosts = snapshot(host(1, used={"MEMORY_MB": 4096}), host(2), host(3, used={"MEMORY_MB": 1024}))
    assert chosen(plan(hosts)) == ["h2", "h3", "h1"]


def test_negative_multiplier_fills_hosts_up() -> None:
    hosts = snapshot(host(1, used={"MEMORY_MB": 4096}), host(2), host(3, used={"MEMORY_MB": 1024}))
    assert chosen(plan(hosts, config={"weights": {"ram": -1.0}})) == ["h1", "h3", "h2"]


def test_weights_are_normalized_before_multiplication() -> None:
    hosts = snapshot(host(1, used={"VCPU": 4}), host(2, used={"MEMORY_MB": 4096}))
    assert chosen(plan(hosts, config={"weights": {"ram": 1.0, "cpu": 2.0}})) == ["h2", "h1"]
    assert chosen(plan(hosts, config={"weights": {"ram": 2.0, "cpu": 1.0}})) == ["h1", "h2"]
    best = plan(hosts, config={"weights": {"ram": 2.0, "cpu": 1.0, "disk": 1.0}}).diagnosis.weights[0]
    assert (best.host, best.total, best.parts) == ("h1", 2.0, {"ram": 2.0, "cpu": 0.0, "disk": 0.0})


def test_zero_multiplier_disables_weigher_and_unknown_weigher_is_rejected() -> None:
    hosts = snapshot(host(1), host(2))
    assert plan(hosts, config={"weights": {"ram": 0.0, "cpu": 0}}).diagnosis.weights[0].parts == {"disk": 0.0}
    with pytest.raises(ValueError, match="no scheduler weigher 'colour'"):
        Planner(SchedulerConfig(weights={"colour": 1.0}))


@pytest.mark.parametrize("alternates, expected", [(1, 1), (3, 3), (30, 30), (50, 40)])
def test_number_of_candidates_is_limited_by_alternates(alternates: int, expected: int) -> None:
    hosts = snapshot(*(host(n, used={"MEMORY_MB": n}) for n in range(1, 41)))
    outcome = plan(hosts, config={"alternates": alternates})
    assert chosen(outcome) == [f"h{n}" for n in range(1, expected + 1)]


def test_jitter_varies_order_of_equal_hosts_only() -> None:
    planner = Planner(SchedulerConfig())
    hosts = snapshot(*(host(n) for n in range(1, 11)), host(11, used={"MEMORY_MB": 4096}))
    first = {planner.plan(Request(resources=TINY), hosts).candidates[0].host for _ in range(200)}
    assert len(first) == 10
    assert "h11" not in first
