"""JSON Schema checks: jsonschema-rs decides in microseconds; jsonschema words the message, only on a reject."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from typing import Any

from kilonova import clock
from kilonova.http.errors import BadRequest
from kilonova.http.words import BODY, WORDS, Words, Wrong
from kilonova.ids import is_uuid

Schema = dict[str, Any]
_ITEMS = 500


def _succeeds(parse: Callable[[str], Any], *errors: type[Exception]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, str):
            return True
        try:
            parse(value)
        except errors:
            return False
        return True

    return check


def _unscoped(address: str) -> str:
    """Scopes mean something on one machine only, and Python takes whatever text for one, ends of lines included."""
    if "%" in address:
        raise ValueError("an address with a scope")
    return address


_NAME_NOISE = re.compile(r"^\s|\s$")

FORMATS: dict[str, Callable[[Any], bool]] = {
    "uuid": lambda value: not isinstance(value, str) or is_uuid(value),
    "date-time": _succeeds(clock.parse, ValueError, OverflowError),
    "base64": _succeeds(lambda text: base64.b64decode(text, validate=True), binascii.Error, ValueError),
    "ipv4": _succeeds(ipaddress.IPv4Address, ValueError),
    "ipv6": _succeeds(lambda text: ipaddress.IPv6Address(_unscoped(text)), ValueError),
    "ip": _succeeds(lambda text: ipaddress.ip_address(_unscoped(text)), ValueError),
    "cidr": _succeeds(lambda text: ipaddress.ip_network(_unscoped(text), strict=False), ValueError),
    "name": lambda value: not isinstance(value, str) or (bool(value.strip()) and not _NAME_NOISE.search(value)),
    "name_with_spaces": lambda value: not isinstance(value, str) or bool(value.strip()),
}


class Validator:
    """Compiled when first used: most forms of most routes are never asked for in a process's life."""

    __slots__ = ("_fast", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._fast: Any = None

    def check(self, value: Any, what: str = BODY, words: Words = WORDS) -> None:
        if self._fast is None:
            import jsonschema_rs

            self._fast = jsonschema_rs.validator_for(self.schema, formats=FORMATS, validate_formats=True)
        if not self._fast.is_valid(value):
            # Long lists are looked at only at their start: they would take seconds.
            raise BadRequest(words.invalid(what, self._best(_shortened(value, [_ITEMS])) or self._first(value)))

    def _best(self, value: Any) -> Wrong | None:
        import jsonschema
        from jsonschema.exceptions import best_match

        checker = jsonschema.FormatChecker(formats=())
        for name, function in FORMATS.items():
            checker.checks(name)(function)
        error = best_match(jsonschema.Draft202012Validator(self.schema, format_checker=checker).iter_errors(value))
        if error is None:
            return None
        return Wrong(error.absolute_path, error.message, error.validator, list(error.absolute_schema_path)[:-1])

    def _first(self, value: Any) -> Wrong:
        import jsonschema_rs

        try:
            self._fast.validate(value)
        except jsonschema_rs.ValidationError as error:
            return Wrong(error.instance_path, error.message)
        raise AssertionError("refused and accepted")


def _shortened(value: Any, left: list[int]) -> Any:
    """A copy with at most so many members of lists; objects stay whole, lest a required key be missed."""
    if isinstance(value, dict):
        return {key: _shortened(member, left) for key, member in value.items()}
    if not isinstance(value, list):
        return value
    kept = []
    for member in value:
        if left[0] == 0:
            break
        left[0] -= 1
        kept.append(_shortened(member, left))
    return kept


def pruned(value: Any, schema: Schema) -> Any:
    """The value as /v2 takes it: keys that a closed schema does not know are dropped, names are trimmed."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        closed = schema.get("additionalProperties") is False
        return {
            key: pruned(member, known[key]) if key in known else member
            for key, member in value.items()
            if key in known or not closed
        }
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [pruned(member, schema["items"]) for member in value]
    if isinstance(value, str) and schema.get("format") == "name":
        return value.strip()
    return value
