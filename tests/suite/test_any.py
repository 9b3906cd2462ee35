"""The typed core stays typed: compute and operations rarely mention `Any`, as `tools/count_any` counts it."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

COUNT_ANY = runpy.run_path(str(Path(__file__).parents[2] / "tools/count_any"))
LIMIT = 100


def test_core_mentions_any_less_often_than_the_limit() -> None:
    mentions, _ = COUNT_ANY["count_packages"]()
    assert sum(mentions[package] for package in COUNT_ANY["CORE"]) < LIMIT


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("from typing import Any", 1),
        ("import typing\nx: typing.Any", 1),
        ("def f(a: Any, *b: list[Any]) -> Any: ...", 3),
        ("def f(a: 'dict[str, Any]') -> 'Any': ...", 2),
        ("x = 'Any'  # Any", 0),
        ("any([]), AnyEntry", 0),
    ],
)
def test_mentions_are_counted(source: str, number: int) -> None:
    assert COUNT_ANY["count_any"](ast.parse(source)) == number
