"""Error messages of the HTTP framework. An API whose clients match on other texts overrides them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BODY, QUERY = "request body", "query parameters"
MAX_MESSAGE_LENGTH = 500


class SchemaViolation(NamedTuple):
    """Why a document does not match its schema.

    `place` is the place of the wrong value in the document, `schema` that of the broken rule in the schema.
    """

    place: Sequence[str | int]
    value: object
    message: str
    rule: str = ""
    schema: Sequence[str | int] = ()


class ErrorMessages:
    not_found = "The resource could not be found."

    def version_malformed(self, requested: str) -> str:
        return f"API Version String {requested!r} is of invalid format. It must be of format MajorNum.MinorNum."

    def version_unknown(self, requested: str, lowest: str, highest: str) -> str:
        return f"Version {requested} is not supported by the API. Minimum is {lowest} and maximum is {highest}."

    def method_not_allowed(self, method: str, allowed: str) -> str:
        return f"The method {method} is not allowed here; allowed: {allowed}."

    def unsupported_media_type(self, given: str | None) -> str:
        return f"Unsupported Content-Type {given!r}: application/json is expected."

    def malformed_json(self, detail: str) -> str:
        """The body is not JSON, or has values that cannot be stored."""
        return detail

    def unknown_query_key(self, key: str, patterns: Sequence[str]) -> str:
        """`patterns` are the regular expressions of which the key should match one."""
        return f"Invalid input for query parameters: the key {key!r} is not known."

    def schema_violation(self, what: str, violation: SchemaViolation) -> str:
        """The text of Nova and Cinder, on which clients match. Nova and Cinder show only the last key of the place."""
        message = shorten(violation.message)
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in _inside(violation.place))
        if not place:
            return f"Invalid input in the {what}: {message}"
        is_short = not isinstance(violation.value, dict | list)
        value = f" Value: {shorten(str(violation.value))}." if is_short else ""
        return f"Invalid input for field/attribute {place.lstrip('.')[:200]}.{value} {message}"


def _inside(place: Sequence[str | int]) -> Sequence[str | int]:
    """The place without the name of the resource, in which most requests wrap their attributes."""
    steps = list(place)
    return steps[1:] if len(steps) > 1 and isinstance(steps[1], str) else steps


def shorten(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[:MAX_MESSAGE_LENGTH] + "…"


DEFAULT_MESSAGES = ErrorMessages()
