from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

HOSTS = snapshot(host(1), host(2), host(3), host(4, host="h3"))


@pytest.mark.parametrize(
    "requested, expected",
    [
        ({"host": "h2"}, {"h2"}),
        ({"host": "h9"}, set()),
        ({"hypervisor_hostname": "node1"}, {"h1"}),
        ({"hypervisor_hostname": "h1"}, set()),
        ({"hypervisor_uuid": "uuid-2"}, {"h2"}),
        ({"hypervisor_uuid": "uuid-9"}, set()),
        ({"host": "h3", "hypervisor_hostname": "node4"}, {"h3"}),
        ({"host": "h1", "hypervisor_hostname": "node4"}, set()),
    ],
)
def test_only_the_requested_destination_passes(requested: dict[str, Any], expected: set[str]) -> None:
    assert passing("requested_destination", HOSTS, **requested) == expected


def test_requested_destination_reason() -> None:
    assert is_idle("requested_destination", HOSTS)
    explanation = explain("requested_destination", HOSTS, host="h9")
    assert explanation == Explanation("not the requested destination", "h9", "h1/node1/uuid-1")
