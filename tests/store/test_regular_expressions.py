"""Regular expressions of filters: equal results to Python's, and linear time."""

from __future__ import annotations

import re
import time

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.store import regular_expressions

atoms = st.sampled_from(["a", "b", "1", ".", r"\-", "[ab]", "[^a]", r"\d", r"\w", "(ab)", "(a|b1)", "(a*b)"])
repeated_atoms = st.tuples(atoms, st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}"])).map("".join)
patterns = st.tuples(
    st.sampled_from(["", "^"]), st.lists(repeated_atoms, max_size=6).map("".join), st.sampled_from(["", "$"])
)


@pytest.fixture(scope="module")
def connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    regular_expressions.load_extension(connection)
    return connection


@given(parts=patterns, text=st.text("ab1-.", max_size=9))
def test_results_equal_those_of_python(connection: apsw.Connection, parts: tuple[str, str, str], text: str) -> None:
    pattern = "".join(parts)
    regular_expressions.check_pattern(pattern)
    assert bool(connection.execute("SELECT ?1 REGEXP ?2", (text, pattern)).get) == bool(re.search(pattern, text))


@pytest.mark.parametrize("pattern", ["(a+)+c", "a*" * 100 + "b", "(a|a)*c", "(.*)*c", "((a{9}){9}){9}", "a{99999}"])
def test_matching_takes_linear_time(connection: apsw.Connection, pattern: str) -> None:
    started = time.process_time()
    try:
        regular_expressions.check_pattern(pattern)
        connection.execute("SELECT ?1 REGEXP ?2", ("a" * 255, pattern)).fetchall()
    except regular_expressions.InvalidPattern:
        pass
    assert time.process_time() - started < 5


@pytest.mark.parametrize("pattern", [r"(?=x)", "(?i)x", r"(a)\1", "*", "[", "(a", "a{3,1}", "x\ud800"])
def test_unsupported_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(regular_expressions.InvalidPattern):
        regular_expressions.check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(.?){2000}x",
        "a{257}",
        "a{1,257}",
        "a{257,}",
        "(a{50}){50}",
        "a{50}{50}",
        "((a{9}){9}){99}",
        "((((a+)+)+)+)+",
        "a" * 256,
        "(" + "a" * 100 + "){20}",
        "([^]]{40}){40}",
        r"(\d{40}){40}",
    ],
)
def test_large_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(regular_expressions.InvalidPattern):
        regular_expressions.check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["a{100}", "(ab){0,50}", "[{2000}]", r"\{2000\}", "(((a)+)*)?", "a" * 250, "^web-[0-9]+$"]
)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    regular_expressions.check_pattern(pattern)
