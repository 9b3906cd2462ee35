"""The filter's regular expressions agree with Python's where both can be asked, and never run away."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.store.regexp import BadPattern, pattern, regexp_like

atoms = st.sampled_from(["a", "b", "1", ".", r"\-", "[ab]", "[^a]", r"\d"])
pieces = st.tuples(atoms, st.sampled_from(["", "", "*", "+", "?"])).map("".join)
patterns = st.tuples(st.sampled_from(["", "^"]), st.lists(pieces, max_size=6).map("".join), st.sampled_from(["", r"$"]))


@given(patterns, st.text("ab1-.\n", max_size=9))
def test_agrees_with_python(parts: tuple[str, str, str], text: str) -> None:
    start, body, end = parts
    python = start + body + (r"\Z" if end else "")
    assert regexp_like(text, start + body + end) == bool(re.search(python, text, re.DOTALL))


def test_long_patterns_stay_quick() -> None:
    started = time.perf_counter()
    assert not regexp_like("a" * 255, "a*" * 100 + "b")
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("text", ["(a+)+$", "a{1000}", "a|b", r"(?=x)", r"\1", "*", "[", "a**", "[z-a]"])
def test_refuses_what_needs_backtracking(text: str) -> None:
    with pytest.raises(BadPattern):
        pattern(text)
