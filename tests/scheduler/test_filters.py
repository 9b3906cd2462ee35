"""Each filter alone: whom it lets pass, and what it says of the others."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.scheduler import Request
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, amounts, host, names, snapshot


def three() -> Hosts:
    """h1 in az1, h2 in az2, h3 with two hypervisors in the default zone; each lacks something."""
    return snapshot(
        host(1, zone="az1", traits=frozenset({"CUSTOM_A", "CUSTOM_B"})),
        host(2, zone="az2", traits=frozenset({"CUSTOM_A"}), disabled=True, disabled_reason="new disk"),
        host(3, traits=frozenset({"CUSTOM_B"}), used={"VCPU": 6, "MEMORY_MB": 8192}),
        host(4, host="h3", forced_down=True, inventory={"VCPU": amounts(8, min_unit=2, max_unit=4, step_size=2)}),
    )


ALL = {"h1", "h2", "h3"}


@pytest.mark.parametrize(
    "name, asked, expected",
    [
        ("compute_up", {}, {"h1", "h3"}),
        ("zone", {}, ALL),
        ("zone", {"zone": "az1"}, {"h1"}),
        ("zone", {"zone": "nova"}, {"h3"}),
        ("zone", {"zone": "nowhere"}, set()),
        ("requested_destination", {}, ALL),
        ("requested_destination", {"host": "h2"}, {"h2"}),
        ("requested_destination", {"host": "h9"}, set()),
        ("requested_destination", {"hypervisor_hostname": "node1"}, {"h1"}),
        ("requested_destination", {"hypervisor_hostname": "h1"}, set()),
        ("requested_destination", {"hypervisor_uuid": "uuid-2"}, {"h2"}),
        ("requested_destination", {"hypervisor_uuid": "uuid-9"}, set()),
        ("requested_destination", {"host": "h3", "hypervisor_hostname": "node4"}, {"h3"}),
        ("requested_destination", {"host": "h1", "hypervisor_hostname": "node4"}, set()),
        ("excluded", {}, ALL),
        ("excluded", {"excluded_hosts": frozenset({"h1", "h9"})}, {"h2", "h3"}),
        ("excluded", {"excluded_hosts": frozenset({"h3"})}, {"h1", "h2"}),
        ("traits", {}, ALL),
        ("traits", {"required_traits": frozenset({"CUSTOM_A"})}, {"h1", "h2"}),
        ("traits", {"required_traits": frozenset({"CUSTOM_A", "CUSTOM_B"})}, {"h1"}),
        ("traits", {"required_traits": frozenset({"CUSTOM_C"})}, set()),
        ("traits", {"forbidden_traits": frozenset({"CUSTOM_B"})}, {"h2", "h3"}),
        ("traits", {"forbidden_traits": frozenset({"CUSTOM_C"})}, ALL),
        ("traits", {"required_traits": frozenset({"CUSTOM_A"}), "forbidden_traits": frozenset({"CUSTOM_B"})}, {"h2"}),
        ("capacity", {"resources": {"VCPU": 1}}, ALL),
        ("capacity", {"resources": {"VCPU": 8}}, {"h1", "h2"}),
        ("capacity", {"resources": {"VCPU": 9}}, set()),
        ("capacity", {"resources": {"VCPU": 4}}, ALL),  # the second hypervisor of h3
        ("capacity", {"resources": {"VCPU": 3}}, {"h1", "h2"}),  # 2 left on one of h3, the other counts in twos
        ("capacity", {"resources": {"VCPU": 1, "MEMORY_MB": 1}}, {"h1", "h2"}),
        ("capacity", {"resources": {"VCPU": 1, "MEMORY_MB": 0}}, ALL),
        ("capacity", {"resources": {"CUSTOM_FPGA": 1}}, set()),
    ],
)
def test_who_passes(name: str, asked: dict[str, Any], expected: set[str]) -> None:
    hosts = three()
    request = Request(**{"resources": TINY} | asked)
    (check,) = load([name])
    assert names(hosts, check.passes(request, hosts)) == expected


@pytest.mark.parametrize(
    "name, asked, row, text, need, have",
    [
        ("compute_up", {}, 1, "disabled", "an enabled compute service", "disabled: new disk"),
        ("compute_up", {}, 3, "forced down", "a compute service that is up", "forced down by an administrator"),
        ("zone", {"zone": "az1"}, 1, "not in zone az1", "az1", "az2"),
        ("requested_destination", {"host": "h9"}, 0, "not the requested destination h9", "h9", "h1/node1/uuid-1"),
        ("excluded", {"excluded_hosts": frozenset({"h1"})}, 0, "excluded", "any but h1", "h1"),
        ("traits", {"required_traits": frozenset({"X"})}, 0, "lack trait X", "X", "not this trait"),
        (
            "traits",
            {"forbidden_traits": frozenset({"CUSTOM_A"})},
            0,
            "have forbidden trait CUSTOM_A",
            "not CUSTOM_A",
            "CUSTOM_A",
        ),
        ("capacity", {"resources": {"VCPU": 3}}, 2, "lack 3 VCPU", "3 VCPU", "2 VCPU free of 8 VCPU"),
        (
            "capacity",
            {"resources": {"VCPU": 1, "MEMORY_MB": 1}},
            2,
            "lack 1 MB memory",
            "1 MB memory",
            "0 MB memory free of 8192 MB memory",
        ),
        ("capacity", {"resources": {"VCPU": 6}}, 3, "lack 6 VCPU", "6 VCPU", "at most 4 VCPU for one server"),
        ("capacity", {"resources": {"VCPU": 1}}, 3, "lack 1 VCPU", "1 VCPU", "at least 2 VCPU for one server"),
        ("capacity", {"resources": {"VCPU": 3}}, 3, "lack 3 VCPU", "3 VCPU", "steps of 2 VCPU"),
        ("capacity", {"resources": {"DISK_GB": 3}}, 3, "lack 3 GB disk", "3 GB disk", "no DISK_GB"),
        ("capacity", {"resources": {"CUSTOM_FPGA": 3}}, 0, "lack 3 CUSTOM_FPGA", "3 CUSTOM_FPGA", "no CUSTOM_FPGA"),
    ],
)
def test_what_it_says(name: str, asked: dict[str, Any], row: int, text: str, need: str, have: str) -> None:
    hosts = three()
    request = Request(**{"resources": TINY} | asked)
    (check,) = load([name])
    assert not check.passes(request, hosts)[row]
    parts = check.reason.parts(request)
    reason = next((part for part in parts if part.applies and part.applies(request, hosts)[row]), parts[-1])
    assert (reason.text(request), reason.need(request), reason.have(request, hosts.at(row))) == (text, need, have)


def test_filters_are_loaded_in_their_order_and_unknown_ones_refused() -> None:
    assert [check.name for check in load(["capacity", "kilonova.scheduler.filters.zone"])] == ["capacity", "zone"]
    with pytest.raises(ValueError, match="no scheduler filter 'zones'"):
        load(["zones"])
