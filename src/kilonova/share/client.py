"""Compute's client of the share service, built in or Manila. It uses only the public API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

import orjson
from msgspec import Raw, Struct
from msgspec.json import Decoder

from kilonova.http.client import Refused, Unreachable, valid_response

if TYPE_CHECKING:
    from kilonova.http.client import Caller
    from kilonova.identity.client import Auth

Body = Mapping[str, object]
T = TypeVar("T")

# The first version with locked access rules.
VERSION = "2.82"
# The state of an access rule that is in effect.
ACTIVE = "active"


class ShareError(Refused):
    """The share service refused a request."""


class Share(Struct, frozen=True, kw_only=True):
    id: str
    status: str
    share_proto: str
    name: str | None = None
    project_id: str | None = None


class ExportLocation(Struct, frozen=True):
    """Only administrators see `is_admin_only`."""

    path: str
    preferred: bool = False
    is_admin_only: bool = False


class AccessRule(Struct, frozen=True):
    id: str
    access_type: str
    access_to: str
    state: str


class ResourceLock(Struct, frozen=True):
    id: str
    lock_reason: str | None = None


_DOCUMENT = Decoder(dict[str, Raw])
_SHARE, _LOCATIONS = Decoder(Share), Decoder(list[ExportLocation])
_RULE, _RULES = Decoder(AccessRule), Decoder(list[AccessRule])
_LOCK, _LOCKS = Decoder(ResourceLock), Decoder(list[ResourceLock])


class ShareClient:
    """The base URL of `caller` has no version. Every method may raise ShareError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def show(self, share_id: str, auth: Auth) -> Share | None:
        """The share, or None if the token cannot see it."""
        try:
            response = await self._call("GET", f"/shares/{quote(share_id, safe='')}", auth)
        except ShareError as error:
            if error.status == 404:
                return None
            raise
        # An id such as `detail` leads to another resource.
        return _decode(response, "share", _SHARE) if "share" in response else None

    async def export_location(self, share_id: str, auth: Auth) -> str | None:
        """The path of the share's preferred export location, or None if it has none."""
        response = await self._call("GET", f"/shares/{quote(share_id, safe='')}/export_locations", auth)
        found = [each for each in _decode(response, "export_locations", _LOCATIONS) if not each.is_admin_only]
        found.sort(key=lambda location: not location.preferred)
        return found[0].path if found else None

    async def access_rule(self, share_id: str, access_type: str, access_to: str, auth: Auth) -> AccessRule | None:
        """The access rule of a share for `access_to`, in any state, or None."""
        response = await self._call("GET", f"/share-access-rules?{urlencode({'share_id': share_id})}", auth)
        rules = _decode(response, "access_list", _RULES)
        return next((rule for rule in rules if (rule.access_type, rule.access_to) == (access_type, access_to)), None)

    async def allow_access(
        self, share_id: str, access_type: str, access_to: str, reason: str, auth: Auth
    ) -> AccessRule:
        """Allow access by a rule that users can neither delete nor read."""
        body = {
            "access_type": access_type,
            "access_to": access_to,
            "access_level": "rw",
            "lock_visibility": True,
            "lock_deletion": True,
            "lock_reason": reason,
        }
        response = await self._act(share_id, {"allow_access": body}, auth)
        return _decode(response, "access", _RULE)

    async def deny_access(self, share_id: str, rule_id: str, auth: Auth) -> None:
        """Delete a rule with its locks. A missing rule or share is ignored."""
        try:
            await self._act(share_id, {"deny_access": {"access_id": rule_id, "unrestrict": True}}, auth)
        except ShareError as error:
            if error.status != 404:
                raise

    async def locks(self, share_id: str, auth: Auth) -> list[ResourceLock]:
        """The locks of a share's deletion, of all projects."""
        query = urlencode({"resource_id": share_id, "resource_action": "delete", "all_projects": "True"})
        return _decode(await self._call("GET", f"/resource-locks?{query}", auth), "resource_locks", _LOCKS)

    async def lock(self, share_id: str, reason: str, auth: Auth) -> ResourceLock:
        """Lock the share, so that it cannot be deleted."""
        body = {"resource_id": share_id, "resource_type": "share", "resource_action": "delete", "lock_reason": reason}
        response = await self._call("POST", "/resource-locks", auth, {"resource_lock": body})
        return _decode(response, "resource_lock", _LOCK)

    async def unlock(self, lock_id: str, auth: Auth) -> None:
        """Delete a lock. A missing lock is ignored."""
        try:
            await self._call("DELETE", f"/resource-locks/{quote(lock_id, safe='')}", auth)
        except ShareError as error:
            if error.status != 404:
                raise

    async def _act(self, share_id: str, action: Body, auth: Auth) -> dict[str, Raw]:
        return await self._call("POST", f"/shares/{quote(share_id, safe='')}/action", auth, action)

    async def _call(self, method: str, path: str, auth: Auth, json: Body | None = None) -> dict[str, Raw]:
        """The members of the response, not decoded yet."""
        headers = {
            "X-Auth-Token": auth.token,
            "Accept": "application/json",
            "X-OpenStack-Manila-API-Version": VERSION,
        }
        response = await self._caller.request(method, f"/v2{path}", headers=headers, json=json)
        if response.status >= 400:
            raise _error(response.status, response.body)
        with valid_response("share"):
            return _DOCUMENT.decode(response.body) if response.body else {}


@valid_response("share")
def _decode(response: dict[str, Raw], key: str, decoder: Decoder[T]) -> T:
    return decoder.decode(response[key])


def _error(status: int, body: bytes) -> Exception:
    try:
        message = str(next(iter(orjson.loads(body).values()))["message"])
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        message = f"the share service answered {status}"
    if status >= 500 or status == 429:
        return Unreachable(message)
    return ShareError(status, message)
