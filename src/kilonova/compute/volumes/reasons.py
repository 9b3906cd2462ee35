"""Why the volume service failed, as far as it says so, for servers that it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kilonova.http.client import Unreachable
from kilonova.identity.client import Auth, IdentityError
from kilonova.operations import Failed, Operation

if TYPE_CHECKING:
    from kilonova.services import Services

Item = dict[str, Any]


async def failure(op: Operation, ident: str, message: str) -> Failed:
    """What to raise for a volume or snapshot that failed: to users in the service's words for users; administrators
    also see by which of its events and requests its operators find more.
    """
    found = await _of_project(op, ident)
    if found is None:
        return Failed(message)
    return Failed(f"{message}{in_words(found)}", fault=_details(found))


async def for_caller(services: Services, ident: str, auth: Auth) -> str:
    """The same words, of a thing that the caller sees. Empty if there are none."""
    return in_words(await services.volume.reason(ident, auth))


def in_words(found: Item | None) -> str:
    return f" The volume service says: {found['user_message']}" if found else ""


async def _of_project(op: Operation, ident: str) -> Item | None:
    """Messages are for the project that has the thing. Where the service has no role they stay unread."""
    try:
        auth = await op.services.identity.auth(op.project_id)
    except (IdentityError, Unreachable):
        return None
    found: Item | None = await op.services.volume.reason(ident, auth)
    return found


def _details(found: Item) -> str:
    known = [str(found[key]) for key in ("event_id", "request_id", "created_at") if found.get(key)]
    thing = f"{found.get('resource_type') or 'thing'} {found['resource_uuid']}"
    return f"{', '.join((thing, *known))}: {found['user_message']}"
