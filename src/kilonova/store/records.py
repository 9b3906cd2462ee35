"""Records: rows as frozen structs, decoded once where they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import itemgetter
from types import NoneType
from typing import ClassVar, Self, cast, get_args, get_type_hints

import msgspec

from kilonova.store.interface import Row

_SCALARS = (str, int, float, bool, NoneType)


class Record(msgspec.Struct, frozen=True):
    """Base of all records. The fields are columns of `table`, all or some; columns of other types are JSON text."""

    table: ClassVar[str]

    @classmethod
    def decode(cls, row: Row) -> Self:
        """The record of a row, which may have further columns."""
        return cast(Self, (_decoders.get(cls) or _compile(cls))(row))

    @classmethod
    def decode_all(cls, rows: Iterable[Row]) -> list[Self]:
        return [cls.decode(row) for row in rows]

    @classmethod
    def decode_optional(cls, row: Row | None) -> Self | None:
        return None if row is None else cls.decode(row)

    def encode(self) -> Row:
        """The row of the record."""
        row = msgspec.structs.asdict(self)
        for name in document_columns(type(self)):
            if row[name] is not None:
                row[name] = encode_document(row[name])
        return row


def encode_document(value: object) -> str:
    """The JSON text of a column."""
    return msgspec.json.encode(value).decode()


@cache
def document_columns(kind: type[Record]) -> list[str]:
    """The columns that are JSON text. Cached, because reading type hints is slow."""
    hints = get_type_hints(kind)
    return [name for name in kind.__struct_fields__ if not all(part in _SCALARS for part in _alternatives(hints[name]))]


def _alternatives(hint: object) -> tuple[object, ...]:
    parts = get_args(hint)
    return parts if NoneType in parts else (hint,)


_decoders: dict[type[Record], Callable[[Row], Record]] = {}


def _compile(kind: type[Record]) -> Callable[[Row], Record]:
    names = kind.__struct_fields__
    hints = get_type_hints(kind)
    documents = [(names.index(name), msgspec.json.Decoder(hints[name]).decode) for name in document_columns(kind)]
    columns = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)

    def decode(row: Row) -> Record:
        values = list(columns(row))
        for place, decode_document in documents:
            if values[place] is not None:
                values[place] = decode_document(values[place])
        return kind(*values)

    _decoders[kind] = decode
    return decode
