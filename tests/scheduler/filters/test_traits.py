from __future__ import annotations

import pytest

from tests.scheduler.filters.support import Explanation, explain, is_idle, passing
from tests.scheduler.support import host, snapshot

A, B, C = "CUSTOM_A", "CUSTOM_B", "CUSTOM_C"
HOSTS = snapshot(host(1, traits=frozenset({A, B})), host(2, traits=frozenset({A})), host(3, traits=frozenset({B})))


@pytest.mark.parametrize(
    "required, forbidden, expected",
    [
        ({A}, (), {"h1", "h2"}),
        ({A, B}, (), {"h1"}),
        ({C}, (), set()),
        ((), {B}, {"h2"}),
        ((), {C}, {"h1", "h2", "h3"}),
        ({A}, {B}, {"h2"}),
    ],
)
def test_required_and_forbidden_traits(required: set[str], forbidden: set[str], expected: set[str]) -> None:
    requested = {"required_traits": frozenset(required), "forbidden_traits": frozenset(forbidden)}
    assert passing("traits", HOSTS, **requested) == expected


def test_traits_reasons() -> None:
    assert is_idle("traits", HOSTS)
    assert explain("traits", HOSTS, required_traits=frozenset({A, C})) == Explanation(
        f"lack trait {C}", C, "not this trait"
    )
    assert explain("traits", HOSTS, forbidden_traits=frozenset({A})) == Explanation(
        f"have forbidden trait {A}", f"not {A}", A
    )
