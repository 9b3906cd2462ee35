"""Compute's client of the volume service, built in or a real Cinder: its public API and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson

from kilonova.http.client import Refused, Unreachable

if TYPE_CHECKING:
    from kilonova.http.client import Caller
    from kilonova.identity.client import Auth

Item = dict[str, Any]

# The versions in which things came: of attachments at all, of their completion, of volumes for several servers, of
# asking without the project in the path, and of replacing a volume's content by an image; and the first in which
# messages are found by what they are about.
BASE = "3.44"
MULTIATTACH = "3.50"
REIMAGE = "3.68"
MESSAGES = "3.5"
_VERSION = "volume {}"


class VolumeError(Refused):
    """The volume service refused."""


class TooOld(Exception):
    """The volume service does not speak the version that is needed."""

    def __init__(self, needed: str, newest: str) -> None:
        spoken = newest or "3.0"
        super().__init__(f"The volume service is too old: it speaks versions up to {spoken}, and {needed} is needed.")
        self.needed = needed


class VolumeClient:
    """The caller's base is the service's, without a version. Every method may raise VolumeError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Versions

    async def newest(self) -> str:
        """The newest version that the service speaks; empty if it knows none but 3.0."""
        answer = await self._caller.request("GET", "/v3/", headers={"Accept": "application/json"})
        if answer.status >= 500:
            raise Unreachable(f"the volume service answered {answer.status}")
        try:
            found = next(one for one in answer.json()["versions"] if one["id"].startswith("v3"))
            return str(found["version"])
        except (ValueError, KeyError, TypeError, StopIteration):
            raise VolumeError(answer.status, "the volume service does not say which versions it speaks") from None

    async def demand(self, version: str) -> None:
        """Raises TooOld where the service does not speak the version."""
        newest = await self.newest()
        if _number(newest) < _number(version):
            raise TooOld(version, newest)

    # Volumes

    async def show(self, volume_id: str, auth: Auth) -> Item | None:
        """The volume, or None if the token may not see one of this id."""
        return await self._show("volumes", "volume", volume_id, auth, version=MULTIATTACH)

    async def volumes(self, auth: Auth, filters: Mapping[str, str] | None = None) -> list[Item]:
        return await self._list("volumes/detail", "volumes", auth, filters)

    async def create(self, volume: Item, auth: Auth) -> Item:
        made: Item = (await self._call("POST", "/volumes", auth, {"volume": volume}))["volume"]
        return made

    async def delete(self, volume_id: str, auth: Auth) -> None:
        """A volume that is gone already is fine."""
        await self._delete("volumes", volume_id, auth)

    async def force_delete(self, volume_id: str, auth: Auth) -> None:
        """Whatever its status is; for administrators."""
        await self._act(volume_id, {"os-force_delete": {}}, auth)

    async def begin_detaching(self, volume_id: str, auth: Auth) -> None:
        await self._act(volume_id, {"os-begin_detaching": {}}, auth)

    async def roll_detaching(self, volume_id: str, auth: Auth) -> None:
        await self._act(volume_id, {"os-roll_detaching": {}}, auth)

    async def reimage(self, volume_id: str, image_id: str, auth: Auth) -> None:
        """Replace the content of a reserved volume. The end of it is told by an event."""
        asked = {"image_id": image_id, "reimage_reserved": True}
        await self._act(volume_id, {"os-reimage": asked}, auth, version=REIMAGE)

    async def image_metadata(self, volume_id: str, auth: Auth) -> dict[str, str]:
        """What is known of the image that the volume was made of; nothing for others."""
        found = await self.show(volume_id, auth)
        return dict(found.get("volume_image_metadata") or {}) if found else {}

    # Snapshots

    async def snapshot(self, snapshot_id: str, auth: Auth) -> Item | None:
        return await self._show("snapshots", "snapshot", snapshot_id, auth)

    async def snapshots(self, auth: Auth, filters: Mapping[str, str] | None = None) -> list[Item]:
        return await self._list("snapshots/detail", "snapshots", auth, filters)

    async def create_snapshot(self, snapshot: Item, auth: Auth) -> Item:
        made: Item = (await self._call("POST", "/snapshots", auth, {"snapshot": snapshot}))["snapshot"]
        return made

    async def delete_snapshot(self, snapshot_id: str, auth: Auth) -> None:
        """A snapshot that is gone already is fine."""
        await self._delete("snapshots", snapshot_id, auth)

    async def set_snapshot_status(self, snapshot_id: str, status: str, auth: Auth) -> None:
        """Say what has become of a snapshot that the service has asked for help with."""
        path = f"/snapshots/{quote(snapshot_id, safe='')}/action"
        await self._call("POST", path, auth, {"os-update_snapshot_status": {"status": status}})

    # Messages

    async def reason(self, ident: str, auth: Auth) -> Item | None:
        """The newest message about the volume or snapshot. None if there is none, or none can be had: it is only words,
        for which nothing else shall fail.
        """
        query = urlencode({"resource_uuid": ident})
        try:
            found = (await self._call("GET", f"/messages?{query}", auth, version=MESSAGES))["messages"]
            about = [one for one in found if one["resource_uuid"] == ident and one["user_message"]]
            return max(about, key=lambda one: str(one["created_at"]), default=None)
        except (VolumeError, Unreachable, KeyError, TypeError):
            return None

    # Types

    async def types(self, auth: Auth) -> list[Item]:
        return await self._list("types", "volume_types", auth, None)

    # Attachments

    async def attachments(self, auth: Auth, **filters: str) -> list[Item]:
        """Those that match, as much of each as the list shows: id, volume_id, instance, status."""
        return await self._list("attachments", "attachments", auth, {"all_tenants": "1", **filters})

    async def attachment(self, attachment_id: str, auth: Auth) -> Item | None:
        found = await self._show("attachments", "attachment", attachment_id, auth)
        return found and _nested(found)

    async def create_attachment(
        self,
        volume_id: str,
        server_id: str,
        auth: Auth,
        connector: Item | None = None,
        *,
        device: str | None = None,
        mode: str | None = None,
    ) -> Item:
        """Without a connector the volume is only reserved; with one, `device` says what the guest calls it."""
        asked: Item = {"volume_uuid": volume_id, "instance_uuid": server_id}
        if connector is not None:
            asked["connector"] = _with_device(connector, device)
        if mode is not None:
            asked["mode"] = mode
        version = BASE if mode is None else "3.54"
        made = await self._call("POST", "/attachments", auth, {"attachment": asked}, version=version)
        return _nested(made["attachment"])

    async def update_attachment(
        self, attachment_id: str, connector: Item, auth: Auth, *, device: str | None = None
    ) -> Item:
        """Connect: the answer says how the volume is reached. `device` is what the guest calls it."""
        path = f"/attachments/{quote(attachment_id, safe='')}"
        asked = {"attachment": {"connector": _with_device(connector, device)}}
        return _nested((await self._call("PUT", path, auth, asked))["attachment"])

    async def complete_attachment(self, attachment_id: str, auth: Auth) -> None:
        path = f"/attachments/{quote(attachment_id, safe='')}/action"
        await self._call("POST", path, auth, {"os-complete": None})

    async def delete_attachment(self, attachment_id: str, auth: Auth) -> None:
        """An attachment that is gone already is fine."""
        await self._delete("attachments", attachment_id, auth)

    # Calling

    async def _act(self, volume_id: str, action: Item, auth: Auth, *, version: str = BASE) -> None:
        await self._call("POST", f"/volumes/{quote(volume_id, safe='')}/action", auth, action, version=version)

    async def _show(self, noun: str, key: str, ident: str, auth: Auth, *, version: str = BASE) -> Item | None:
        try:
            answer = await self._call("GET", f"/{noun}/{quote(ident, safe='')}", auth, version=version)
        except VolumeError as error:
            if error.status == 404:
                return None
            raise
        # A word such as `detail` is no id, though there is something at that address.
        found: Item | None = answer.get(key)
        return found

    async def _list(self, path: str, key: str, auth: Auth, filters: Mapping[str, str] | None) -> list[Item]:
        """All pages."""
        found: list[Item] = []
        query = dict(filters or {})
        while True:
            answer = await self._call("GET", f"/{path}?{urlencode(query)}", auth, version=MULTIATTACH)
            found += answer[key]
            if not answer[key] or not answer.get(f"{key}_links"):
                return found
            query["marker"] = answer[key][-1]["id"]

    async def _delete(self, noun: str, ident: str, auth: Auth) -> None:
        try:
            await self._call("DELETE", f"/{noun}/{quote(ident, safe='')}", auth)
        except VolumeError as error:
            if error.status != 404:
                raise

    async def _call(self, method: str, path: str, auth: Auth, json: Item | None = None, *, version: str = BASE) -> Any:
        headers = {
            "X-Auth-Token": auth.token,
            "Accept": "application/json",
            "OpenStack-API-Version": _VERSION.format(version),
        }
        if auth.is_service:
            # Real services let only other services take volumes from servers, and want this to tell them by.
            headers["X-Service-Token"] = auth.token
        answer = await self._caller.request(method, _path(auth, path), headers=headers, json=json)
        if answer.status >= 400:
            raise _error(answer.status, answer.body)
        try:
            return answer.json() if answer.body else None
        except ValueError:
            raise Unreachable("the volume service answered what cannot be read") from None


def _path(auth: Auth, path: str) -> str:
    """Services before 3.67 want the project in the path, though the token says it."""
    return f"/v3/{quote(auth.project_id, safe='')}{path}" if auth.project_id else f"/v3{path}"


def _with_device(connector: Item, device: str | None) -> Item:
    return {**connector, "mountpoint": device} if device else connector


def _nested(attachment: Item) -> Item:
    """The way to the volume as hosts know it; the service shows its kind among its data. None stays empty."""
    way = dict(attachment.get("connection_info") or {})
    if way:
        way = {"driver_volume_type": way.pop("driver_volume_type", None), "data": way}
    return {**attachment, "connection_info": way}


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version else (3, 0)


def _error(status: int, body: bytes) -> Exception:
    try:
        message = str(next(iter(orjson.loads(body).values()))["message"])
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        message = f"the volume service answered {status}"
    if status >= 500 or status == 429:
        return Unreachable(message)
    return VolumeError(status, message)
