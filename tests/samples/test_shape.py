"""The comparison itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples.shape import differences


@pytest.mark.parametrize(
    "sample, answer",
    [
        ({"a": 1, "b": "x"}, {"b": "y", "a": 2.5}),
        ({"a": None}, {"a": 1}),
        ({"a": []}, {"a": [1]}),
        ({"a": [{"b": 1}]}, {"a": []}),
        ({"a": {}}, {"a": {"free": "form"}}),
        ([{"rel": "self"}, {"rel": "x", "type": "y"}], [{"rel": "x", "type": "y"}, {"rel": "self"}]),
    ],
)
def test_alike(sample: Any, answer: Any) -> None:
    assert list(differences(sample, answer)) == []


@pytest.mark.parametrize(
    "sample, answer, expected",
    [
        ({"a": 1}, {"b": 1}, [".a is missing", ".b is not in the sample"]),
        ({"a": 1}, {"a": "1"}, [".a: string instead of number"]),
        ({"a": 1}, {"a": True}, [".a: boolean instead of number"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": "x"}]}, [".a[1].b: string instead of number"]),
        ({"a": [1]}, {"a": {"b": 1}}, [".a: object instead of array"]),
    ],
)
def test_different(sample: Any, answer: Any, expected: list[str]) -> None:
    assert list(differences(sample, answer)) == expected
