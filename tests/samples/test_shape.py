"""Tests of the comparison."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples.shape import differences


@pytest.mark.parametrize(
    "sample, response",
    [
        ({"a": 1, "b": "x"}, {"b": "y", "a": 2.5}),
        ({"a": None}, {"a": 1}),
        ({"a": []}, {"a": [1]}),
        ({"a": [{"b": 1}]}, {"a": []}),
        ({"a": {}}, {"a": {"free": "form"}}),
        ([{"rel": "self"}, {"rel": "x", "type": "y"}], [{"rel": "x", "type": "y"}, {"rel": "self"}]),
    ],
)
def test_same_shape(sample: Any, response: Any) -> None:
    assert list(differences(sample, response)) == []


@pytest.mark.parametrize(
    "sample, response, expected",
    [
        ({"a": 1}, {"b": 1}, [".a is missing", ".b is not in the sample"]),
        ({"a": 1}, {"a": "1"}, [".a: string instead of number"]),
        ({"a": 1}, {"a": True}, [".a: boolean instead of number"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": "x"}]}, [".a[1].b: string instead of number"]),
        ({"a": [1]}, {"a": {"b": 1}}, [".a: object instead of array"]),
    ],
)
def test_different_shape(sample: Any, response: Any, expected: list[str]) -> None:
    assert list(differences(sample, response)) == expected
