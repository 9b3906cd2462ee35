"""The sentences in which the core refuses. An API whose clients know other ones brings its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BODY, QUERY = "request body", "query parameters"
_LONGEST = 500


class Wrong(NamedTuple):
    """What a schema has against a value: where, why, and which part of the schema says so."""

    place: Sequence[str | int]
    message: str
    rule: str = ""
    schema: Sequence[str | int] = ()


class Words:
    not_found = "The resource could not be found."

    def version_malformed(self, asked: str) -> str:
        return f"API Version String {asked!r} is of invalid format. It must be of format MajorNum.MinorNum."

    def version_unknown(self, asked: str, lowest: str, highest: str) -> str:
        return f"Version {asked} is not supported by the API. Minimum is {lowest} and maximum is {highest}."

    def method(self, method: str, allowed: str) -> str:
        return f"The method {method} is not allowed here; allowed: {allowed}."

    def media_type(self, given: str | None) -> str:
        return f"Unsupported Content-Type {given!r}: application/json is expected."

    def malformed(self, detail: str) -> str:
        """The body is no JSON, or JSON that cannot be kept."""
        return detail

    def query_key(self, key: str, patterns: Sequence[str]) -> str:
        """A key that the route does not know; `patterns` are those of which one would have been fine too."""
        return f"Invalid input for query parameters: the key {key!r} is not known."

    def invalid(self, what: str, wrong: Wrong) -> str:
        message = shortened(wrong.message)
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in wrong.place).lstrip(".")
        if not place:
            return f"Invalid input in the {what}: {message}"
        return f"Invalid input for field/attribute {place[:200]}: {message}"


def shortened(message: str) -> str:
    return message if len(message) <= _LONGEST else message[:_LONGEST] + "…"


WORDS = Words()
