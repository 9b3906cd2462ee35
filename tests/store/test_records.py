"""Records agree with the schema: a field has the name, type and nullability of its column."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import NoneType
from typing import get_args, get_type_hints

import pytest
from sqlalchemy import Boolean, Double, Integer, String

import kilonova
from kilonova.store.records import Record, document_columns
from kilonova.store.schema.base import metadata

_WITHOUT_RECORDS = (
    "kilonova.store.migrations",
    "kilonova.hosts.drivers.libvirt",
    "kilonova.client",
    "kilonova.__main__",
)
for _module in walk_packages(kilonova.__path__, "kilonova."):
    if not _module.name.startswith(_WITHOUT_RECORDS):
        import_module(_module.name)


def _records(base: type[Record] = Record) -> list[type[Record]]:
    """All records, without bases that have no table."""
    found = [each for kind in base.__subclasses__() for each in (kind, *_records(kind))]
    return [kind for kind in found if hasattr(kind, "table")]


@pytest.mark.parametrize("kind", _records(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_fields_match_the_columns(kind: type[Record]) -> None:
    columns = metadata.tables[kind.table].columns
    hints, documents = get_type_hints(kind), document_columns(kind)
    for name in kind.__struct_fields__:
        column, hint = columns[name], hints[name]
        parts = set(get_args(hint)) if NoneType in get_args(hint) else {hint}
        assert (NoneType in parts) == column.nullable, name
        (python_type,) = parts - {NoneType} if name not in documents else (str,)
        expected = {Boolean: bool, Integer: int, Double: float, String: str}
        assert python_type is next(kind for base, kind in expected.items() if isinstance(column.type, base)), name
