"""User messages of the volume service: why a volume or snapshot failed, for the fault of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.http.client import Unreachable
from kilonova.identity.client import Auth, IdentityError
from kilonova.operations import Failed, Operation
from kilonova.volume.client import Volume, VolumeMessage, VolumeSnapshot

if TYPE_CHECKING:
    from kilonova.services import Services


class VolumeFailed(Failed):
    """The volume service refused a request, or could not create a volume or snapshot."""


async def failure_with_message(op: Operation, resource_id: str, error: str) -> VolumeFailed:
    """The error to raise for a failed volume or snapshot.

    Users see the user message; administrators also see the event and request id, to find more in the service's logs.
    """
    message = await _find_message(op, resource_id)
    if message is None:
        return VolumeFailed(error)
    return VolumeFailed(f"{error}{as_sentence(message)}", fault=_details(message))


async def failure_reason(services: Services, resource: Volume | VolumeSnapshot, auth: Auth) -> str:
    """The user message for a resource in error that the caller can see, as a sentence; empty if there is none."""
    failed = resource.status.startswith("error")
    return as_sentence(await services.volume.latest_message(resource.id, auth)) if failed else ""


def as_sentence(message: VolumeMessage | None) -> str:
    return f" The volume service says: {message.user_message}" if message else ""


async def _find_message(op: Operation, resource_id: str) -> VolumeMessage | None:
    """Messages belong to the resource's project. None if the service user has no role there."""
    try:
        auth = await op.services.identity.auth(op.project_id)
    except (IdentityError, Unreachable):
        return None
    return await op.services.volume.latest_message(resource_id, auth)


def _details(message: VolumeMessage) -> str:
    known = [value for value in (message.event_id, message.request_id, message.created_at) if value]
    resource = f"{message.resource_type or 'resource'} {message.resource_uuid}"
    return f"{', '.join((resource, *known))}: {message.user_message}"
