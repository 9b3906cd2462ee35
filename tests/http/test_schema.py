"""JSON Schema validation: formats, and short messages that name the place."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.errors import BadRequest
from kilonova.http.schema import FORMATS, Validator, prune_for_v2

SHORT = {"type": "string", "maxLength": 3}
NAME = {
    "type": "object",
    "properties": {
        "o": {"type": "array", "items": SHORT},
        "r": {"properties": {"n": SHORT, "m": {"properties": {"n": SHORT}}}},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "document, message",
    [
        ({"o": ["x", "long"]}, "Invalid input for field/attribute o[1]. Value: long. 'long' is too long"),
        ({"o": {}}, "Invalid input for field/attribute o. {} is not of type 'array'"),
        ({"r": {"n": "long"}}, "Invalid input for field/attribute n. Value: long. 'long' is too long"),
        ({"r": {"m": {"n": True}}}, "Invalid input for field/attribute m.n. Value: True. True is not of type 'string'"),
        ({"x": 1}, "Invalid input in the request body: Additional properties are not allowed ('x' was unexpected)"),
    ],
)
def test_message_names_the_place_and_the_value(document: object, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        Validator(NAME).check(document)
    assert error.value.message == message


def test_message_is_short() -> None:
    with pytest.raises(BadRequest) as error:
        Validator(NAME).check({"o": ["x" * 10000]})
    assert len(error.value.message) < 1200


@pytest.mark.parametrize(
    "form, good, bad",
    [
        ("uuid", ["0b0d2f1e-0000-4000-8000-000000000000", "0b0d2f1e000040008000000000000000"], ["x", ""]),
        ("date-time", ["2026-01-02T03:04:05Z", "2026-01-02", "2026-01-02T03:04:05+01:00"], ["yesterday", ""]),
        ("base64", ["YQ==", ""], ["YQ", "?"]),
        ("ipv4", ["10.0.0.1"], ["10.0.0.256", "::1"]),
        ("ipv6", ["::1"], ["10.0.0.1", "::g", "fe80::1%eth0", "fe80::1%a\nb"]),
        ("ip", ["::1", "10.0.0.1"], ["x", "fe80::1%a\nb"]),
        ("cidr", ["10.0.0.0/8", "10.0.0.1/8"], ["10.0.0.0/33", "fe80::%a\nb/64"]),
        ("name", ["a", "a b"], ["", " ", " a", "a "]),
        ("name_with_spaces", ["a", " a "], ["", "  "]),
    ],
)
def test_formats_in_both_validators(form: str, good: list[str], bad: list[str]) -> None:
    assert form in FORMATS
    validator = Validator({"type": ["string", "null"], "format": form})
    for value in [*good, None]:
        validator.check(value)
    for value in bad:
        with pytest.raises(BadRequest, match=form):
            validator.check(value)


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"a": 1, "x": 2}, {"a": 1}),
        ({"o": {"b": 1, "x": 2}}, {"o": {"b": 1}}),
        ({"l": [{"c": 1, "x": 2}, 7]}, {"l": [{"c": 1}, 7]}),
        ({"n": "  padded "}, {"n": "padded"}),
        ({"free": {"x": " kept "}}, {"free": {"x": " kept "}}),
        ("no object", "no object"),
    ],
)
def test_prune_for_v2(value: Any, expected: Any) -> None:
    def closed(**properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties, "additionalProperties": False}

    schema = closed(
        a={},
        o=closed(b={}),
        l={"type": "array", "items": closed(c={})},
        n={"type": "string", "format": "name"},
        free={"type": "object"},
    )
    assert prune_for_v2(value, schema) == expected
