"""Messages in the database. A failed operation writes its message in the transaction that records the failure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from kilonova import clock
from kilonova.http.errors import NotFound
from kilonova.ids import new_id
from kilonova.operations.errors import Cancelled, Failed, TimedOut, Unexpected
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record

if TYPE_CHECKING:
    from kilonova.http import Context
    from kilonova.operations import Operation

SHOW, LIST, DELETE = "message:get", "message:get_all", "message:delete"
ERROR = "ERROR"
DAY_SECONDS = 24 * 3600.0
# The API has a time of expiry for each message.
FOREVER_DAYS = 36500.0
_MAX_LENGTH = 1000
# Users must not see paths of the service's files.
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.+@~-]+)+/?")


class Message(Record, frozen=True):
    table: ClassVar[str] = "volume_messages"

    id: str
    project_id: str
    event_id: str
    level: str
    resource_type: str
    resource_id: str
    text: str
    request_id: str
    created_at: float
    expires_at: float


class Action(NamedTuple):
    """What failed: the number in event ids, the resource type and the text."""

    number: str
    resource: str
    text: str


VOLUME, SNAPSHOT = "VOLUME", "VOLUME_SNAPSHOT"
_TABLES = {VOLUME: "volumes", SNAPSHOT: "volume_snapshots"}
SCHEDULE = Action("001", VOLUME, "schedule allocate volume")
CREATE = Action("101", VOLUME, "create volume")
DELETE_VOLUME = Action("102", VOLUME, "delete volume")
EXTEND = Action("103", VOLUME, "extend volume")
REIMAGE = Action("104", VOLUME, "reimage volume")
REVERT = Action("105", VOLUME, "revert volume to snapshot")
UPLOAD = Action("106", VOLUME, "copy volume to image")
CREATE_SNAPSHOT = Action("107", SNAPSHOT, "create snapshot")
DELETE_SNAPSHOT = Action("108", SNAPSHOT, "delete snapshot")

UNKNOWN_ERROR, NO_BACK_END, TIMEOUT, KNOWN_ERROR = "001", "002", "003", "004"


def not_found(message_id: str) -> NotFound:
    return NotFound(f"Message {message_id} could not be found.")


def target(message: Message) -> dict[str, str]:
    return {"project_id": message.project_id}


async def get(reader: Reader, message_id: str) -> Message | None:
    return Message.decode_optional(await reader.fetch_one("SELECT * FROM volume_messages WHERE id = $1", message_id))


async def find(ctx: Context, reader: Reader, message_id: str, *, rule: str) -> Message:
    """The message. Raises 404 if the caller may not see it, and 403 if the rule forbids the action."""
    message = await get(reader, message_id)
    if message is None or not ctx.may(SHOW, target(message)):
        raise not_found(message_id)
    ctx.authorize(rule, target(message))
    return message


async def delete(tx: Transaction, message_id: str) -> bool:
    return await tx.execute("DELETE FROM volume_messages WHERE id = $1", message_id) > 0


async def record_failure(tx: Transaction, op: Operation, action: Action, resource_id: str, error: Failed) -> None:
    """Write the message for the project that owns the resource now. Nothing if the resource was deleted."""
    if isinstance(error, Cancelled):
        return
    project_id = await tx.fetch_value(f"SELECT project_id FROM {_TABLES[action.resource]} WHERE id = $1", resource_id)
    if project_id is None:
        return
    now = clock.now()
    message = Message(
        id=new_id(),
        project_id=project_id,
        event_id=f"VOLUME_{action.resource}_{action.number}_{_detail(action, error)}",
        level=ERROR,
        resource_type=action.resource,
        resource_id=resource_id,
        text=f"{action.text}: {user_text(error)}",
        request_id=op.request_id or "",
        created_at=now,
        expires_at=_expiry(now, op.services.config.retention.message_days),
    )
    await insert_row(tx, Message.table, message.encode())


def _expiry(now: float, days: float) -> float:
    return now + (days if days >= 0 else FOREVER_DAYS) * DAY_SECONDS


def user_text(error: Failed) -> str:
    return _PATH.sub("…", str(error))[:_MAX_LENGTH]


def _detail(action: Action, error: Failed) -> str:
    if action is SCHEDULE:
        return NO_BACK_END
    if isinstance(error, Unexpected):
        return UNKNOWN_ERROR
    return TIMEOUT if isinstance(error, TimedOut) else KNOWN_ERROR
