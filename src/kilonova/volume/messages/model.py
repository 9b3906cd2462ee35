"""Messages in the database: written with the failure that they tell of, by the operation that failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova import clock
from kilonova.http.errors import NotFound
from kilonova.ids import new_id
from kilonova.operations.errors import Cancelled, Failed, TimedOut, Unexpected
from kilonova.store import Reader, Row, Transaction

if TYPE_CHECKING:
    from kilonova.http import Context
    from kilonova.operations import Operation

SHOW, LIST, DELETE = "message:get", "message:get_all", "message:delete"
ERROR = "ERROR"
DAY = 24 * 3600.0
# Columns are for hundreds of words, and readers are not for more.
_MOST = 1000
# Where files of the service lie is nothing for users, whoever has let it slip into a message.
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.+@~-]+)+/?")


class Act(NamedTuple):
    """What failed: its number in ids of events, the kind of thing that it was about, and in words."""

    number: str
    resource: str
    words: str


VOLUME, SNAPSHOT = "VOLUME", "VOLUME_SNAPSHOT"
_TABLES = {VOLUME: "volumes", SNAPSHOT: "volume_snapshots"}
SCHEDULE = Act("001", VOLUME, "schedule allocate volume")
CREATE = Act("101", VOLUME, "create volume")
DELETE_VOLUME = Act("102", VOLUME, "delete volume")
EXTEND = Act("103", VOLUME, "extend volume")
REIMAGE = Act("104", VOLUME, "reimage volume")
REVERT = Act("105", VOLUME, "revert volume to snapshot")
UPLOAD = Act("106", VOLUME, "copy volume to image")
CREATE_SNAPSHOT = Act("107", SNAPSHOT, "create snapshot")
DELETE_SNAPSHOT = Act("108", SNAPSHOT, "delete snapshot")

UNKNOWN, NO_BACK_END, LATE, TOLD = "001", "002", "003", "004"


def missing(message_id: str) -> NotFound:
    return NotFound(f"Message {message_id} could not be found.")


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"]}


async def get(reader: Reader, message_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_messages WHERE id = $1", message_id)


async def find(ctx: Context, reader: Reader, message_id: str, *, rule: str) -> Row:
    """The message, if the caller may see it (else 404) and the rule allows the act on it (else 403)."""
    row = await get(reader, message_id)
    if row is None or not ctx.may(SHOW, target(row)):
        raise missing(message_id)
    ctx.authorize(rule, target(row))
    return row


async def delete(tx: Transaction, message_id: str) -> bool:
    return await tx.execute("DELETE FROM volume_messages WHERE id = $1", message_id) > 0


async def tell(tx: Transaction, op: Operation, act: Act, resource_id: str, error: Failed) -> None:
    """For the transaction that records a failure. It is told to the project that has what failed, while it has it."""
    if isinstance(error, Cancelled):
        return
    project_id = await tx.fetch_value(f"SELECT project_id FROM {_TABLES[act.resource]} WHERE id = $1", resource_id)
    if project_id is None:
        return
    now = clock.now()
    row = {
        "id": new_id(),
        "project_id": project_id,
        "event_id": f"VOLUME_{act.resource}_{act.number}_{_detail(act, error)}",
        "level": ERROR,
        "resource_type": act.resource,
        "resource_id": resource_id,
        "text": f"{act.words}: {words(error)}",
        "request_id": op.request_id or "",
        "created_at": now,
        "expires_at": now + op.services.config.volume.message_days * DAY,
    }
    marks = ", ".join(f"${place}" for place in range(1, len(row) + 1))
    await tx.execute(f"INSERT INTO volume_messages ({', '.join(row)}) VALUES ({marks})", *row.values())


def words(error: Failed) -> str:
    return _PATH.sub("…", str(error))[:_MOST]


def _detail(act: Act, error: Failed) -> str:
    if act is SCHEDULE:
        return NO_BACK_END
    if isinstance(error, Unexpected):
        return UNKNOWN
    return LATE if isinstance(error, TimedOut) else TOLD
