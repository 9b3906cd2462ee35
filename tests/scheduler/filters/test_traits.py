from __future__ import annotations

import pytest

from tests.scheduler.filters.support import Said, idle, passing, said
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
def test_required_and_forbidden(required: set[str], forbidden: set[str], expected: set[str]) -> None:
    asked = {"required_traits": frozenset(required), "forbidden_traits": frozenset(forbidden)}
    assert passing("traits", HOSTS, **asked) == expected


def test_it_says_which() -> None:
    assert idle("traits", HOSTS)
    assert said("traits", HOSTS, required_traits=frozenset({A, C})) == Said(f"lack trait {C}", C, "not this trait")
    assert said("traits", HOSTS, forbidden_traits=frozenset({A})) == Said(f"have forbidden trait {A}", f"not {A}", A)
