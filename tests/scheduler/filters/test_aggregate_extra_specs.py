from __future__ import annotations

import pytest

from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.filters.support import Explanation, explain, is_idle, passing, set_metadata
from tests.scheduler.support import host, snapshot


def hosts() -> Hosts:
    found = snapshot(
        host(1, aggregates=frozenset({1})),
        host(2, aggregates=frozenset({1, 2})),
        host(3, aggregates=frozenset({3})),
        host(4),
    )
    return set_metadata(
        found, {1: {"disk": "ssd", "tier": "2"}, 2: {"disk": "nvme,optane"}, 3: {"disk": "hdd", "tier": "9"}}
    )


@pytest.mark.parametrize(
    "specs, expected",
    [
        ({"aggregate_instance_extra_specs:disk": "ssd"}, {"h1", "h2"}),
        ({"aggregate_instance_extra_specs:disk": "optane"}, {"h2"}),
        ({"aggregate_instance_extra_specs:disk": "<or> nvme <or> hdd"}, {"h2", "h3"}),
        ({"aggregate_instance_extra_specs:tier": ">= 3"}, {"h3"}),
        ({"aggregate_instance_extra_specs:tier": ">= 2", "aggregate_instance_extra_specs:disk": "ssd"}, {"h1", "h2"}),
        ({"aggregate_instance_extra_specs:unknown": "x"}, set()),
        ({"disk": "hdd"}, {"h3"}),
    ],
)
def test_metadata_of_any_aggregate_meets_the_spec(specs: dict[str, str], expected: set[str]) -> None:
    assert passing("aggregate_extra_specs", hosts(), extra_specs=specs) == expected


@pytest.mark.parametrize("spec", ["hw:numa_nodes", "resources:VCPU", "group_policy", "in_no_aggregate"])
def test_other_specs_are_ignored(spec: str) -> None:
    assert is_idle("aggregate_extra_specs", hosts(), extra_specs={spec: "x"})


def test_aggregate_extra_specs_reason() -> None:
    specs = {"note": "x", "aggregate_instance_extra_specs:disk": "s== tape"}
    text = "not in an aggregate with disk s== tape"
    explanation = explain("aggregate_extra_specs", hosts(), 1, extra_specs=specs)
    assert explanation == Explanation(text, "disk s== tape", "disk=ssd, disk=nvme,optane")
    assert explain("aggregate_extra_specs", hosts(), 3, extra_specs=specs).have == "no aggregate with disk"
