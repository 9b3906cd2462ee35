"""JSON Schema validation: jsonschema-rs validates, jsonschema only writes the error message, because it is slow."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from typing import Any

from kilonova import clock
from kilonova.http.error_messages import BODY, DEFAULT_MESSAGES, ErrorMessages, SchemaViolation
from kilonova.http.errors import BadRequest
from kilonova.ids import is_uuid

Schema = dict[str, Any]
_MAX_CHECKED_ITEMS = 500
# Longer than any string that a schema accepts, except for ones without a limit.
_MAX_CHECKED_LENGTH = 70_000


def _parses(parse: Callable[[str], object], *errors: type[Exception]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if not isinstance(value, str):
            return True
        try:
            parse(value)
        except errors:
            return False
        return True

    return check


def _without_scope(address: str) -> str:
    """Refuse an IPv6 scope: it is local to one machine, and Python accepts any text in it, even line ends."""
    if "%" in address:
        raise ValueError("the address has a scope")
    return address


_OUTER_SPACE = re.compile(r"^\s|\s$")

FORMATS: dict[str, Callable[[object], bool]] = {
    "uuid": lambda value: not isinstance(value, str) or is_uuid(value),
    "date-time": _parses(clock.parse, ValueError, OverflowError),
    # `base64` and MIME encoders wrap their lines.
    "base64": _parses(lambda text: base64.b64decode("".join(text.split()), validate=True), binascii.Error, ValueError),
    "ipv4": _parses(ipaddress.IPv4Address, ValueError),
    "ipv6": _parses(lambda text: ipaddress.IPv6Address(_without_scope(text)), ValueError),
    "ip": _parses(lambda text: ipaddress.ip_address(_without_scope(text)), ValueError),
    "cidr": _parses(lambda text: ipaddress.ip_network(_without_scope(text), strict=False), ValueError),
    "name": lambda value: not isinstance(value, str) or (bool(value.strip()) and not _OUTER_SPACE.search(value)),
    "name_with_spaces": lambda value: not isinstance(value, str) or bool(value.strip()),
}


class Validator:
    """Validates values. The schema is compiled at first use: most versions of most routes are never used."""

    __slots__ = ("_fast", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._fast: Any = None

    def check(self, value: object, what: str = BODY, messages: ErrorMessages = DEFAULT_MESSAGES) -> None:
        if self._fast is None:
            import jsonschema_rs

            self._fast = jsonschema_rs.validator_for(self.schema, formats=FORMATS, validate_formats=True)
        if not self._fast.is_valid(value):
            # jsonschema would take seconds for long values, so it sees only their beginning.
            violation = self._best_violation(_limit_size(value, [_MAX_CHECKED_ITEMS])) or self._first_violation(value)
            raise BadRequest(messages.schema_violation(what, violation))

    def _best_violation(self, value: object) -> SchemaViolation | None:
        import jsonschema
        from jsonschema.exceptions import best_match

        checker = jsonschema.FormatChecker(formats=())
        for name, function in FORMATS.items():
            checker.checks(name)(function)
        error = best_match(jsonschema.Draft202012Validator(self.schema, format_checker=checker).iter_errors(value))
        if error is None:
            return None
        return SchemaViolation(
            error.absolute_path, error.instance, error.message, error.validator, list(error.absolute_schema_path)[:-1]
        )

    def _first_violation(self, value: object) -> SchemaViolation:
        import jsonschema_rs

        try:
            self._fast.validate(value)
        except jsonschema_rs.ValidationError as error:
            return SchemaViolation(error.instance_path, error.instance, error.message)
        raise AssertionError("is_valid and validate disagree")


def _limit_size(value: object, left: list[int]) -> object:
    """A copy with short strings and at most `left[0]` list members in total. Objects stay complete."""
    if isinstance(value, str):
        return value[:_MAX_CHECKED_LENGTH]
    if isinstance(value, dict):
        return {key: _limit_size(member, left) for key, member in value.items()}
    if not isinstance(value, list):
        return value
    kept = []
    for member in value:
        if left[0] == 0:
            break
        left[0] -= 1
        kept.append(_limit_size(member, left))
    return kept


def prune_for_v2(value: object, schema: Schema) -> object:
    """The value as /v2 accepts it: without the keys that a closed schema does not know, and with names trimmed."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        closed = schema.get("additionalProperties") is False
        return {
            key: prune_for_v2(member, known[key]) if key in known else member
            for key, member in value.items()
            if key in known or not closed
        }
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune_for_v2(member, schema["items"]) for member in value]
    if isinstance(value, str) and schema.get("format") == "name":
        return value.strip()
    return value
