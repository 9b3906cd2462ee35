"""Views: the JSON form of a row, in the newest version. Older versions are derived from the microversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kilonova.http.schema import Schema

if TYPE_CHECKING:
    from kilonova.http.context import Context

# A field's value function returns this to leave out the key.
OMIT: Any = object()

Value = Callable[[Any, "Context"], object]
ANYTHING: Schema = {}


class Field:
    """One key of a view. Only callers allowed by its `policy`, if any, see it. `optional` fields may be OMITted."""

    __slots__ = ("optional", "policy", "schema", "value")

    def __init__(
        self,
        value: Value,
        schema: Mapping[str, object] = ANYTHING,
        policy: str | None = None,
        optional: bool = False,
    ) -> None:
        self.value = value
        self.schema = schema
        self.policy = policy
        self.optional = optional


def col(name: str, schema: Mapping[str, object] = ANYTHING, policy: str | None = None) -> Field:
    """A field that shows a column of the row unchanged."""
    return Field(lambda row, ctx: row[name], schema, policy)


def attribute(name: str, schema: Mapping[str, object] = ANYTHING, policy: str | None = None) -> Field:
    """A field that shows an attribute of the record unchanged."""
    return Field(lambda record, ctx: getattr(record, name), schema, policy)


class View:
    """`table[minor - low]` has the fields of each version, so that all versions cost the same."""

    def __init__(self, name: str, fields: Mapping[str, Field]) -> None:
        self.name = name
        self.fields = dict(fields)
        self.low = 0
        self.table: list[dict[str, Field]] = [self.fields]

    def at(self, minor: int) -> dict[str, Field]:
        return self.table[minor - self.low]

    def visible(self, ctx: Context) -> list[tuple[str, Value]]:
        return [
            (name, field.value)
            for name, field in self.at(ctx.minor).items()
            if field.policy is None or ctx.may(field.policy)
        ]

    def schema(self, minor: int) -> Schema:
        """JSON Schema of the view at a version. Fields with a policy are not required."""
        fields = self.at(minor)
        return {
            "type": "object",
            "properties": {name: dict(field.schema) for name, field in fields.items()},
            "required": [name for name, field in fields.items() if field.policy is None and not field.optional],
        }
