"""Strict JSON parser for request bodies. Errors are 400 and name the place."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from kilonova.http.errors import BadRequest

MAX_DEPTH = 64
MAX_NUMBER = 2**63
# Parsing and checking so many values takes about 50 ms, during which the process answers nothing else.
MAX_VALUES = 25_000


class _InvalidJson(Exception):
    pass


def parse_json(raw: bytes, max_values: int | None = MAX_VALUES) -> Any:
    # Each value but the first follows one of these. Those inside of strings count too.
    if max_values is not None and sum(map(raw.count, (b",", b":", b"[", b"{"))) > max_values:
        raise BadRequest(f"The request body has more than {max_values} values.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not valid UTF-8 at byte {error.start}.") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_real
        )
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"The request body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except _InvalidJson as error:
        raise BadRequest(str(error)) from None
    except RecursionError:
        raise BadRequest(f"The request body is nested deeper than {MAX_DEPTH} levels.") from None
    # The check costs more than the parse, so it is skipped for bodies that cannot violate it.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH or b"\\u" in raw or b"\x00" in raw:
        _check_values(value, "", 0)
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _InvalidJson(f"The key {key!r} appears twice in one object of the request body.")
            seen.add(key)
    return members


def _constant(name: str) -> NoReturn:
    raise _InvalidJson(f"The request body is not valid JSON: {name} is not a JSON number.")


def _integer(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) >= MAX_NUMBER:
        raise _InvalidJson(f"The number {digits[:24]} in the request body is out of range.")
    return int(digits)


def _real(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _InvalidJson(f"The number {digits[:24]} in the request body is out of range.")
    return number


def _check_values(value: object, place: str, depth: int) -> None:
    if isinstance(value, str):
        check_text(value, place or "the request body")
    elif isinstance(value, dict | list) and depth >= MAX_DEPTH:
        raise BadRequest(f"The request body is nested deeper than {MAX_DEPTH} levels at {place[:60]}.")
    elif isinstance(value, dict):
        for key, member in value.items():
            check_text(key, f"a key of {place or 'the request body'}")
            _check_values(member, f"{place}.{key}" if place else key, depth + 1)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _check_values(member, f"{place}[{index}]", depth + 1)


def check_text(text: str, place: str) -> None:
    """Refuse text that the databases cannot store."""
    if "\x00" in text:
        raise BadRequest(f"Invalid input for {place}: it contains a NUL character.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"Invalid input for {place}: it contains a lone surrogate.") from None
