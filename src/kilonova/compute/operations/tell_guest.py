"""Tell a guest what its server is called and what users say of it: in its own time, beside whatever else happens."""

from __future__ import annotations

import hashlib

import orjson

from kilonova.compute.operations.common import ask
from kilonova.compute.operations.leftovers import GONE
from kilonova.hosts.messages import SetMetadata
from kilonova.hosts.transport import HostFailed
from kilonova.http import Context
from kilonova.operations import Operation, Passing, Step, begin
from kilonova.store import Row, Transaction

TELL = "tell guest"


class TellGuest(Operation):
    """`params`: `guest_id`. It is of no server, so that nothing waits for a host that is silent."""

    kind = "tell guest"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(TELL, tell, undo=None, why="it only repeats what the record says", deadline=3600),)


async def begin_telling(ctx: Context, tx: Transaction, row: Row) -> None:
    if row["host"] is not None:
        await begin(
            tx,
            TellGuest,
            params={"guest_id": row["id"]},
            project_id=row["project_id"],
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
            host=row["host"],
        )


async def tell(op: Operation) -> None:
    """What the record says once the host has heard it may be something else: then it is told that too.

    Whoever is told of later changes meanwhile does the same, so that the last word is the record's.
    """
    told: tuple[str, str] | None = None
    while (now := await _now(op)) is not None and now[1:] != told:
        host, told = now[0], now[1:]
        await _say(op, host, *told)


async def _now(op: Operation) -> tuple[str, str, str] | None:
    """Host, name and metadata; nothing of a server that is on no host, or gone."""
    sql = "SELECT host, name, metadata FROM servers WHERE id = $1 AND host IS NOT NULL AND NOT deleted"
    row = await op.db.fetch_one(sql, op.params["guest_id"])
    return None if row is None else (row["host"], row["name"], row["metadata"])


async def _say(op: Operation, host: str, name: str, metadata: str) -> None:
    # A host does one step once, and what is said twice may be something else by then.
    step = f"{TELL} {hashlib.sha256(orjson.dumps([name, metadata])).hexdigest()[:16]}"
    try:
        verb = SetMetadata(guest_id=op.params["guest_id"], name=name, metadata=orjson.loads(metadata))
        await ask(op, host, step, verb)
    except HostFailed as error:
        if error.kind in GONE:
            raise Passing(f"{host}: the guest is away") from error
        if error.passing:
            raise
        # An older host tells guests what they were built with, and goes on so.
