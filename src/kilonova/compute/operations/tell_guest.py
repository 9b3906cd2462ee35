"""Tell a guest what its server is called and what users say of it, in the server's turn; or when its host is back."""

from __future__ import annotations

import hashlib

import orjson

from kilonova.compute.operations.common import ask, fence, server_of
from kilonova.compute.operations.leftovers import GONE
from kilonova.compute.operations.silence import PING
from kilonova.compute.servers import model
from kilonova.hosts.messages import SetMetadata
from kilonova.hosts.transport import HostFailed, HostUnreachable
from kilonova.http import Context
from kilonova.operations import Operation, Passing, Step, begin
from kilonova.store import Row, Transaction

TELL = "tell guest"
FORGETTING = "forgetting"
WHY = "it only repeats what the record says"


class TellGuest(Operation):
    """`params`: `forgetting` the password that the guest has given away.

    Nothing waits for a host that is silent: that is left to an operation of its own.
    """

    kind = "tell guest"
    action = ""
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(TELL, tell, undo=None, why=WHY, deadline=60),)


class TellGuestLater(Operation):
    """`params`: `guest_id`, and those of TellGuest. It is of no server, so that others need not wait for it."""

    kind = "tell guest later"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(TELL, tell_later, undo=None, why=WHY, deadline=24 * 3600),)


async def begin_telling(ctx: Context, tx: Transaction, row: Row, *, forgetting: bool = False) -> None:
    if row["host"] is not None and not await model.is_being_deleted(tx, row["id"]):
        await begin(
            tx,
            TellGuest,
            params={FORGETTING: forgetting},
            server_id=row["id"],
            project_id=row["project_id"],
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
            host=row["host"],
        )


async def tell(op: Operation) -> None:
    server = await server_of(op)
    if server["host"] is None:
        return
    try:
        await _say(op, server["id"], server["host"], server["name"], server["metadata"], PING)
    except HostUnreachable:
        async with op.db.transaction() as tx:
            params = {"guest_id": op.server_id, FORGETTING: op.params.get(FORGETTING, False)}
            # Named, so that what the host reports before it has heard it is not believed.
            where = {"host": server["host"]} if params[FORGETTING] else {}
            await begin(tx, TellGuestLater, params=params, project_id=op.project_id, request_id=op.request_id, **where)
            await fence(op, tx)
    except HostFailed as error:
        if error.passing:
            raise
        # A guest that is gone hears nothing, and an older host tells guests what they were built with.


async def tell_later(op: Operation) -> None:
    """What the record says once the host has heard it may be something else: then it is told that too.

    Whoever is told of later changes meanwhile does the same, so that the last word is the record's.
    """
    told: tuple[str, str] | None = None
    while (now := await _now(op)) is not None and now[1:] != told:
        host, told = now[0], now[1:]
        try:
            await _say(op, op.params["guest_id"], host, *told)
        except HostFailed as error:
            if error.passing or error.kind in GONE:
                raise Passing(f"{host}: the guest is away") from error


async def _now(op: Operation) -> tuple[str, str, str] | None:
    """Host, name and metadata; nothing of a server that is on no host, or gone."""
    sql = "SELECT host, name, metadata FROM servers WHERE id = $1 AND host IS NOT NULL AND NOT deleted"
    row = await op.db.fetch_one(sql, op.params["guest_id"])
    return None if row is None else (row["host"], row["name"], row["metadata"])


async def _say(op: Operation, guest_id: str, host: str, name: str, metadata: str, timeout: float | None = None) -> None:
    # A host does one step once, and what is said twice may be something else by then.
    step = f"{TELL} {hashlib.sha256(orjson.dumps([name, metadata])).hexdigest()[:16]}"
    forgetting = bool(op.params.get(FORGETTING))
    verb = SetMetadata(guest_id=guest_id, name=name, metadata=orjson.loads(metadata), forgetting=forgetting)
    await ask(op, host, step, verb, timeout=timeout)
