"""Strict JSON parsing: invalid bodies are 400 with the reason."""

from __future__ import annotations

import pytest

from kilonova.http.errors import BadRequest
from kilonova.http.json_body import parse_json


@pytest.mark.parametrize(
    "raw, expected",
    [
        (b"", "not valid JSON"),
        (b"{", "line 1"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"o": {"b": 1, "c": 2, "b": 1}}', "'b' appears twice"),
        (b'{"a": 1, "\\u0061": 2}', "'a' appears twice"),
        (b'"\xff"', "UTF-8 at byte 1"),
        (b"\xfe\xff\x00a", "UTF-8 at byte 0"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": -1e999}', "out of range"),
        (b'{"a": 9223372036854775808}', "out of range"),
        (b'{"a": -9223372036854775809}', "out of range"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "out of range"),
        (b'{"a": "\\u0000"}', "a: it contains a NUL"),
        (b'{"a": ["x", "\\u0000"]}', "a[1]: it contains a NUL"),
        (b'{"\\u0000": 1}', "a key of the request body: it contains a NUL"),
        (b'{"a": "\\ud800"}', "a: it contains a lone surrogate"),
        (b'{"a": {"\\udc00": 1}}', "a key of a: it contains a lone surrogate"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
        (b"[" * 20000 + b"]" * 20000, "deeper than 64"),
        (b"[" * 20000, "not valid JSON|deeper than 64"),
        (b"[" + b"1," * 25000 + b"1]", "more than 25000 values"),
        (b'"\x00"', "not valid JSON"),
    ],
)
def test_invalid_json_is_refused(raw: bytes, expected: str) -> None:
    import re

    with pytest.raises(BadRequest) as error:
        parse_json(raw)
    assert any(text in error.value.message for text in expected.split("|")), error.value.message
    assert len(error.value.message) < 300
    assert re.search(r"/\w+/", error.value.message) is None


@pytest.mark.parametrize(
    "raw, value",
    [
        (b"null", None),
        (b' {"a": [1, 2.5, -3e2, true, null, "x"]} ', {"a": [1, 2.5, -300.0, True, None, "x"]}),
        (b'{"a": 9223372036854775807}', {"a": 2**63 - 1}),
        ('"\u00fc\U0001f600"'.encode(), "\u00fc\U0001f600"),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b"[" * 64 + b"]" * 64, None),
        # Many objects in one list are not deep nesting.
        (b"[" + b"{}," * 200 + b"{}]", [{}] * 201),
    ],
)
def test_valid_json_is_accepted(raw: bytes, value: object) -> None:
    parsed = parse_json(raw)
    assert value is None or parsed == value
