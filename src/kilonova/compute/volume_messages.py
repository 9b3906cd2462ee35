"""User messages of the volume service: why a volume or snapshot failed, for the fault of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kilonova.http.client import Unreachable
from kilonova.identity.client import Auth, IdentityError
from kilonova.operations import Failed, Operation

if TYPE_CHECKING:
    from kilonova.services import Services

Item = dict[str, Any]


async def failure_with_message(op: Operation, resource_id: str, error: str) -> Failed:
    """The error to raise for a failed volume or snapshot.

    Users see the user message; administrators also see the event and request id, to find more in the service's logs.
    """
    message = await _find_message(op, resource_id)
    if message is None:
        return Failed(error)
    return Failed(f"{error}{as_sentence(message)}", fault=_details(message))


async def message_for_caller(services: Services, resource_id: str, auth: Auth) -> str:
    """The user message for a resource that the caller can see, as a sentence; empty if there is none."""
    return as_sentence(await services.volume.latest_message(resource_id, auth))


def as_sentence(message: Item | None) -> str:
    return f" The volume service says: {message['user_message']}" if message else ""


async def _find_message(op: Operation, resource_id: str) -> Item | None:
    """Messages belong to the resource's project. None if the service user has no role there."""
    try:
        auth = await op.services.identity.auth(op.project_id)
    except (IdentityError, Unreachable):
        return None
    message: Item | None = await op.services.volume.latest_message(resource_id, auth)
    return message


def _details(message: Item) -> str:
    known = [str(message[key]) for key in ("event_id", "request_id", "created_at") if message.get(key)]
    resource = f"{message.get('resource_type') or 'resource'} {message['resource_uuid']}"
    return f"{', '.join((resource, *known))}: {message['user_message']}"
