from __future__ import annotations

import pytest

from tests.scheduler.filters.support import Explanation, explain, passing
from tests.scheduler.support import amounts, host, snapshot

HOSTS = snapshot(
    host(1),
    host(2, used={"VCPU": 6, "MEMORY_MB": 8192}),
    host(3, inventory={"VCPU": amounts(8, min_unit=2, max_unit=4, step_size=2)}),
    host(4, inventory={"VCPU": amounts(8, reserved=2, allocation_ratio=1.5)}),
)


@pytest.mark.parametrize(
    "resources, expected",
    [
        ({"VCPU": 1}, {"h1", "h2", "h4"}),
        ({"VCPU": 3}, {"h1", "h4"}),
        ({"VCPU": 4}, {"h1", "h3", "h4"}),
        ({"VCPU": 8}, {"h1", "h4"}),
        ({"VCPU": 9}, set()),
        ({"VCPU": 1, "MEMORY_MB": 1}, {"h1"}),
        ({"VCPU": 1, "MEMORY_MB": 0}, {"h1", "h2", "h4"}),
        ({"CUSTOM_FPGA": 1}, set()),
    ],
)
def test_hosts_without_capacity_are_rejected(resources: dict[str, int], expected: set[str]) -> None:
    assert passing("capacity", HOSTS, resources=resources) == expected


@pytest.mark.parametrize(
    "row, resources, explanation",
    [
        (1, {"VCPU": 3}, Explanation("lack 3 VCPU", "3 VCPU", "2 VCPU free of 8 VCPU")),
        (
            1,
            {"VCPU": 1, "MEMORY_MB": 1},
            Explanation("lack 1 MB memory", "1 MB memory", "0 MB memory free of 8192 MB memory"),
        ),
        (2, {"VCPU": 6}, Explanation("cannot give one server 6 VCPU", "6 VCPU", "at most 4 VCPU for one server")),
        (2, {"VCPU": 1}, Explanation("cannot give one server 1 VCPU", "1 VCPU", "at least 2 VCPU for one server")),
        (2, {"VCPU": 3}, Explanation("cannot give one server 3 VCPU", "3 VCPU", "steps of 2 VCPU")),
        (2, {"DISK_GB": 3}, Explanation("lack 3 GB disk", "3 GB disk", "no DISK_GB")),
        (0, {"CUSTOM_FPGA": 3}, Explanation("lack 3 CUSTOM_FPGA", "3 CUSTOM_FPGA", "no CUSTOM_FPGA")),
    ],
)
def test_capacity_reasons(row: int, resources: dict[str, int], explanation: Explanation) -> None:
    assert explain("capacity", HOSTS, row, resources=resources) == explanation
