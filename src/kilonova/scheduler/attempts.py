"""Attempts to find a host: the diagnosis and the chosen host, stored in a compact form.

A successful attempt has the results of each filter and the weights of its candidates. A failed one also has up to
`[scheduler] max_listed_hosts` rejected hosts. Attempts outlive their server and are never purged, as instance actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import orjson

from kilonova import clock
from kilonova.scheduler.explain import Cause, Diagnosis, FilterResult, Rejection, Weight
from kilonova.store import Reader, Row, Transaction

Packed = Mapping[str, object]

# Further candidates are rarely tried.
_MAX_CANDIDATES = 10


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    server_id: str
    operation_id: str | None
    kind: str
    host: str | None
    """The chosen host; None if there was none."""
    lost: int
    """How many earlier plans of the same operation lost all candidates to concurrent claims."""
    diagnosis: Diagnosis
    created_at: float


async def record(
    tx: Transaction,
    *,
    server_id: str,
    operation_id: str | None,
    kind: str,
    diagnosis: Diagnosis | Packed,
    host: str | None,
    lost: int = 0,
) -> None:
    """Store an attempt, in the transaction that claims the host if there is one.

    An operation has at most one refusal. A step that runs again after a crash replaces it.
    """
    if host is None and operation_id is not None:
        await delete_refusal(tx, server_id, operation_id)
    packed = pack(diagnosis) if isinstance(diagnosis, Diagnosis) else diagnosis
    document = {**packed, "lost": lost} if lost else packed
    await tx.execute(_INSERT, server_id, operation_id, kind, host, orjson.dumps(document).decode(), clock.now())


async def delete_refusal(tx: Transaction, server_id: str, operation_id: str) -> None:
    """Delete the refusal of an operation that continues to search."""
    await tx.execute(_DELETE, server_id, operation_id)


async def of_server(reader: Reader, server_id: str, limit: int = 100) -> list[Attempt]:
    """Attempts of a server, newest first."""
    return [_attempt(row) for row in await reader.fetch(_OF_SERVER, server_id, limit)]


def _attempt(row: Row) -> Attempt:
    document = _decode(row["diagnosis"])
    return Attempt(
        id=row["id"],
        server_id=row["server_id"],
        operation_id=row["operation_id"],
        kind=row["kind"],
        host=row["host"],
        lost=document.lost,
        diagnosis=_unpack(document),
        created_at=row["created_at"],
    )


_INSERT = """
INSERT INTO attempts (server_id, operation_id, kind, host, diagnosis, created_at) VALUES ($1, $2, $3, $4, $5, $6)
"""
_DELETE = "DELETE FROM attempts WHERE server_id = $1 AND operation_id = $2 AND host IS NULL"
_OF_SERVER = "SELECT * FROM attempts WHERE server_id = $1 ORDER BY id DESC LIMIT $2"


# The stored form is compact: positions instead of names, common values once, rounded numbers.


def pack(diagnosis: Diagnosis) -> dict[str, object]:
    """The stored form of a diagnosis, as JSON data; `record` accepts it too."""
    packed: dict[str, object] = {
        "hosts": diagnosis.hosts,
        "asked": diagnosis.asked,
        "filters": [_pack_filter(result) for result in diagnosis.filters],
    }
    if diagnosis.weights:
        packed["weighers"] = list(diagnosis.weights[0].parts)
        packed["weights"] = [_pack_weight(weight) for weight in diagnosis.weights[:_MAX_CANDIDATES]]
    if diagnosis.rejections:
        packed["rejections"] = _pack_rejections(diagnosis.rejections)
    return packed


_Number = int | float
_Free = dict[str, tuple[int, int]]


class _Stored(msgspec.Struct, frozen=True):
    """The stored form."""

    hosts: int
    asked: dict[str, object]
    filters: list[str | tuple[str, int, list[tuple[str, int]]]]
    weighers: list[str] = []
    weights: list[tuple[str, str | None, _Number, list[_Number], _Free]] = []
    rejections: list[tuple[str, str, str, list[tuple[str, str | None, str, str, _Free]]]] = []
    lost: int = 0


_decode = msgspec.json.Decoder(_Stored).decode


def _unpack(stored: _Stored) -> Diagnosis:
    return Diagnosis(
        hosts=stored.hosts,
        filters=tuple(_unpack_filters(stored)),
        rejections=tuple(
            Rejection(host, node or host, uuid, name, text, need, have, free)
            for name, text, need, hosts in stored.rejections
            for host, node, uuid, have, free in hosts
        ),
        weights=tuple(
            Weight(host, node or host, total, dict(zip(stored.weighers, parts, strict=True)), free)
            for host, node, total, parts, free in stored.weights
        ),
        asked=stored.asked,
    )


def _pack_filter(result: FilterResult) -> object:
    """A filter without rejections is stored as its name."""
    if not result.rejected:
        return result.filter
    return [result.filter, result.rejected, [[cause.text, cause.hosts] for cause in result.causes]]


def _unpack_filters(stored: _Stored) -> list[FilterResult]:
    left = stored.hosts
    found = []
    for entry in stored.filters:
        name, rejected, causes = (entry, 0, []) if isinstance(entry, str) else entry
        left -= rejected
        found.append(FilterResult(name, rejected, left, tuple(Cause(*cause) for cause in causes)))
    return found


def _pack_weight(weight: Weight) -> list[object]:
    parts = [round(part, 3) for part in weight.parts.values()]
    return [*_names(weight.host, weight.hypervisor_hostname), round(weight.total, 3), parts, weight.free]


def _pack_rejections(rejections: Sequence[Rejection]) -> list[object]:
    """Group by reason."""
    grouped: dict[tuple[str, str, str], list[object]] = {}
    for one in rejections:
        entry = [*_names(one.host, one.hypervisor_hostname), one.hypervisor_uuid, one.have, one.free]
        grouped.setdefault((one.filter, one.text, one.need), []).append(entry)
    return [[*reason, hosts] for reason, hosts in grouped.items()]


def _names(host: str, node: str) -> tuple[str, str | None]:
    return host, None if node == host else node
