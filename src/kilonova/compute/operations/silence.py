"""Hosts that do not answer: an operation goes on without them, and leaves behind what is to be done on their return.

See docs/decisions/0012-silent-hosts.md for why this is safe.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kilonova.hosts.messages import Command, Destroy
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.transport import HostFailed, HostTrouble, HostUnreachable, StaleEpoch, describe
from kilonova.operations import Operation, Passing, Step, begin
from kilonova.store import Transaction

PING = 5.0
"""Seconds in which a host that is there answers the simplest question."""
_FOR_EVER = 100 * 365 * 24 * 3600.0


class ClearGuest(Operation):
    """Destroy a guest that may be on a host where its server is no longer.

    `params`: `guest_id`, `host`, and of the command that may have put it there `operation`, `round`, and a higher
    `epoch`, so that the host refuses that command if it comes late.
    """

    kind = "clear guest"
    action = "clear guest"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "nobody wants the guest back"
        return (Step("destroy guest", clear, undo=None, why=why, deadline=_FOR_EVER),)


async def is_silent(op: Operation, host: str, since: float) -> bool:
    """Whether the host, asked in vain since then (`time.monotonic`), answers nothing at all for too long.

    A host that is only slow answers simple questions. One that an operator has forced down is not waited for.
    """
    if await _forced_down(op, host):
        return True
    patience = op.services.config.operations.host_seconds
    while True:
        try:
            await describe(op.services.hosts, host, timeout=PING)
        except HostUnreachable:
            op.services.scheduler.unheard(host)
            if time.monotonic() >= since + patience:
                return True
            await asyncio.sleep(min(1.0, patience / 10))
        except HostTrouble:
            return False
        else:
            return False


@contextmanager
def watched(op: Operation, host: str) -> Iterator[None]:
    """While the operation waits in here for the host, find out early whether the host is there at all.

    The operation waits its time. But others need not be sent to the same host, to wait as long.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    timer = loop.call_later(PING, lambda: tasks.append(loop.create_task(_ping(op, host))))
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


async def _ping(op: Operation, host: str) -> None:
    try:
        await describe(op.services.hosts, host, timeout=PING)
    except HostUnreachable:
        op.services.scheduler.unheard(host)
    except HostTrouble:
        pass  # whatever it says, it is there


async def leave_guest(op: Operation, tx: Transaction, host: str) -> None:
    """Have the operation's guest destroyed when the host is back. Repeating it changes nothing."""
    identity = str(uuid.uuid5(uuid.UUID(op.id), f"{host} {op.epoch}"))
    if await tx.fetch_value("SELECT 1 FROM operations WHERE id = $1", identity):
        return
    params = {"guest_id": op.server_id, "host": host, "operation": op.id, "round": op.round, "epoch": op.epoch + 1}
    await begin(
        tx,
        ClearGuest,
        params=params,
        project_id=op.project_id,
        user_id=op.user_id,
        request_id=op.request_id,
        host=host,
        operation_id=identity,
    )


async def clear(op: Operation) -> None:
    host, guest_id = op.params["host"], op.params["guest_id"]
    server = await op.db.fetch_one("SELECT host, deleted FROM servers WHERE id = $1", guest_id)
    if server is not None and server["host"] == host and not server["deleted"]:
        raise Passing(f"{host}: the server is there")
    if await op.db.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", host) is None:
        return  # a host that an operator has removed does not come back
    verb = Destroy(guest_id=guest_id)
    fence = {"operation": op.params["operation"], "round": op.params["round"], "epoch": op.params["epoch"]}
    try:
        await op.services.hosts.call(host, Command(host=host, step="clear guest", verb=verb, **fence))
    except StaleEpoch:
        return  # the operation itself came back to it, later than this was asked for
    except HostFailed as error:
        raise Passing(str(error)) from error


async def _forced_down(op: Operation, host: str) -> bool:
    down = await op.db.fetch_value("SELECT forced_down FROM services WHERE host = $1 AND program = $2", host, COMPUTE)
    return bool(down)


def no_answer(op: Operation) -> str:
    return f"did not answer for {op.services.config.operations.host_seconds:g} s"
