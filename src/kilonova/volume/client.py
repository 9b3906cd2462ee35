"""Compute's client of the volume service, built in or Cinder. It uses only the public API."""

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

# Microversions: attachments with their completion, multi-attach volumes, re-imaging, and messages filtered by resource.
BASE_VERSION = "3.44"
MULTIATTACH_VERSION = "3.50"
REIMAGE_VERSION = "3.68"
MESSAGES_VERSION = "3.5"
_VERSION_HEADER = "volume {}"


class VolumeError(Refused):
    """The volume service refused a request."""


class VolumeServiceTooOld(Exception):
    """The volume service does not support the required microversion."""

    def __init__(self, needed: str, newest: str) -> None:
        super().__init__(
            f"The volume service is too old: it supports versions up to {newest or '3.0'}, and {needed} is needed."
        )
        self.needed = needed


class VolumeUse(Struct, frozen=True):
    """A completed attachment, as its volume shows it. Some services do not report the host."""

    attachment_id: str = ""
    server_id: str | None = None
    host_name: str | None = None
    device: str | None = None


class Volume(Struct, frozen=True, kw_only=True, rename={"tenant_id": "os-vol-tenant-attr:tenant_id"}):
    """`size` is in GiB. Only services see `tenant_id`, and not of every volume service."""

    id: str
    status: str
    size: int
    name: str | None = None
    description: str | None = None
    availability_zone: str | None = None
    volume_type: str | None = None
    snapshot_id: str | None = None
    bootable: str = "false"
    multiattach: bool = False
    encrypted: bool = False
    metadata: dict[str, str] = {}
    volume_image_metadata: dict[str, object] | None = None
    attachments: list[VolumeUse] = []
    tenant_id: str | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def image_metadata(self) -> dict[str, str]:
        """The metadata of the image that the volume was created from; empty if there is none."""
        metadata = self.volume_image_metadata or {}
        return {key: str(value) for key, value in metadata.items() if value is not None}


class VolumeSnapshot(Struct, frozen=True, kw_only=True):
    id: str
    status: str
    size: int
    volume_id: str
    name: str | None = None
    description: str | None = None
    metadata: dict[str, str] = {}
    created_at: str | None = None


class Attachment(Struct, frozen=True):
    """`instance` is the server. Lists do not have `connection_info`."""

    id: str
    volume_id: str = ""
    instance: str | None = None
    status: str = ""
    connection_info: dict[str, object] | None = None

    @property
    def connection(self) -> dict[str, object]:
        """The connection info as hosts expect it; empty if the volume is only reserved.

        The API has `driver_volume_type` on the level of the data.
        """
        if not self.connection_info:
            return {}
        data = dict(self.connection_info)
        return {"driver_volume_type": data.pop("driver_volume_type", None), "data": data}


class VolumeMessage(Struct, frozen=True):
    resource_uuid: str | None = None
    user_message: str | None = None
    resource_type: str | None = None
    event_id: str | None = None
    request_id: str | None = None
    created_at: str | None = None


class VolumeType(Struct, frozen=True):
    id: str
    name: str


class _Identity(Struct):
    id: str


_DOCUMENT, _LINKS = Decoder(dict[str, Raw]), Decoder(list[object] | None)
_VOLUME, _VOLUMES = Decoder(Volume), Decoder(list[Volume])
_SNAPSHOT, _SNAPSHOTS = Decoder(VolumeSnapshot), Decoder(list[VolumeSnapshot])
_ATTACHMENT, _ATTACHMENTS = Decoder(Attachment), Decoder(list[Attachment])
_MESSAGES, _TYPES, _IDENTITIES = Decoder(list[VolumeMessage]), Decoder(list[VolumeType]), Decoder(list[_Identity])


class VolumeClient:
    """The base URL of `caller` has no version. Every method may raise VolumeError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Versions

    async def max_version(self, auth: Auth) -> str:
        """The highest microversion of the service; empty if it has none but 3.0."""
        # Cinder requires a token even for its versions.
        headers = {"Accept": "application/json", "X-Auth-Token": auth.token}
        response = await self._caller.request("GET", "/v3/", headers=headers)
        if response.status >= 500:
            raise Unreachable(f"the volume service answered {response.status}")
        try:
            found = next(version for version in response.json()["versions"] if version["id"].startswith("v3"))
            return str(found["version"])
        except (ValueError, KeyError, TypeError, StopIteration):
            raise VolumeError(response.status, "the volume service does not list its versions") from None

    async def check_version(self, version: str, auth: Auth) -> None:
        """Raises VolumeServiceTooOld if the service does not support the version."""
        newest = await self.max_version(auth)
        if _number(newest) < _number(version):
            raise VolumeServiceTooOld(version, newest)

    # Volumes

    async def show(self, volume_id: str, auth: Auth) -> Volume | None:
        """The volume, or None if the token cannot see it."""
        return await self._show("volumes", "volume", volume_id, auth, _VOLUME, version=MULTIATTACH_VERSION)

    async def volumes(self, auth: Auth, filters: Mapping[str, str] | None = None) -> list[Volume]:
        return await self._list("volumes/detail", "volumes", auth, filters, _VOLUMES)

    async def create(self, volume: Body, auth: Auth) -> Volume:
        return _decode(await self._call("POST", "/volumes", auth, {"volume": volume}), "volume", _VOLUME)

    async def delete(self, volume_id: str, auth: Auth) -> None:
        """A missing volume is ignored."""
        await self._delete("volumes", volume_id, auth)

    async def force_delete(self, volume_id: str, auth: Auth) -> None:
        """Delete the volume in any status. Only for administrators."""
        await self._act(volume_id, {"os-force_delete": {}}, auth)

    async def begin_detaching(self, volume_id: str, auth: Auth) -> None:
        await self._act(volume_id, {"os-begin_detaching": {}}, auth)

    async def roll_detaching(self, volume_id: str, auth: Auth) -> None:
        await self._act(volume_id, {"os-roll_detaching": {}}, auth)

    async def reimage(self, volume_id: str, image_id: str, auth: Auth) -> None:
        """Replace the content of a reserved volume. The service sends an event when it is done."""
        body = {"image_id": image_id, "reimage_reserved": True}
        await self._act(volume_id, {"os-reimage": body}, auth, version=REIMAGE_VERSION)

    # Snapshots

    async def snapshot(self, snapshot_id: str, auth: Auth) -> VolumeSnapshot | None:
        return await self._show("snapshots", "snapshot", snapshot_id, auth, _SNAPSHOT)

    async def snapshots(self, auth: Auth, filters: Mapping[str, str] | None = None) -> list[VolumeSnapshot]:
        return await self._list("snapshots/detail", "snapshots", auth, filters, _SNAPSHOTS)

    async def create_snapshot(self, snapshot: Body, auth: Auth) -> VolumeSnapshot:
        return _decode(await self._call("POST", "/snapshots", auth, {"snapshot": snapshot}), "snapshot", _SNAPSHOT)

    async def delete_snapshot(self, snapshot_id: str, auth: Auth) -> None:
        """A missing snapshot is ignored."""
        await self._delete("snapshots", snapshot_id, auth)

    async def set_snapshot_status(self, snapshot_id: str, status: str, auth: Auth) -> None:
        """Report the result of an assisted volume snapshot."""
        path = f"/snapshots/{quote(snapshot_id, safe='')}/action"
        await self._call("POST", path, auth, {"os-update_snapshot_status": {"status": status}})

    # Messages

    async def latest_message(self, ident: str, auth: Auth) -> VolumeMessage | None:
        """The newest message about the volume or snapshot, or None. Errors are ignored: the text is only for users."""
        query = urlencode({"resource_uuid": ident})
        try:
            found = await self._call("GET", f"/messages?{query}", auth, version=MESSAGES_VERSION)
            messages = _decode(found, "messages", _MESSAGES)
        except (VolumeError, Unreachable):
            return None
        about = [each for each in messages if each.resource_uuid == ident and each.user_message]
        return max(about, key=lambda message: message.created_at or "", default=None)

    # Types

    async def types(self, auth: Auth) -> list[VolumeType]:
        return await self._list("types", "volume_types", auth, None, _TYPES)

    # Attachments

    async def attachments(self, auth: Auth, **filters: str) -> list[Attachment]:
        return await self._list("attachments", "attachments", auth, {"all_tenants": "1", **filters}, _ATTACHMENTS)

    async def attachment(self, attachment_id: str, auth: Auth) -> Attachment | None:
        return await self._show("attachments", "attachment", attachment_id, auth, _ATTACHMENT)

    async def create_attachment(
        self,
        volume_id: str,
        server_id: str,
        auth: Auth,
        connector: Body | None = None,
        *,
        device: str | None = None,
        mode: str | None = None,
    ) -> Attachment:
        """Reserve the volume, and connect it if there is a connector. `device` is the device name in the guest."""
        body: dict[str, object] = {"volume_uuid": volume_id, "instance_uuid": server_id}
        if connector is not None:
            body["connector"] = _with_device(connector, device)
        if mode is not None:
            body["mode"] = mode
        version = BASE_VERSION if mode is None else "3.54"
        created = await self._call("POST", "/attachments", auth, {"attachment": body}, version=version)
        return _decode(created, "attachment", _ATTACHMENT)

    async def update_attachment(
        self, attachment_id: str, connector: Body, auth: Auth, *, device: str | None = None
    ) -> Attachment:
        """Connect the volume. The result has `connection_info`. `device` is the device name in the guest."""
        path = f"/attachments/{quote(attachment_id, safe='')}"
        body = {"attachment": {"connector": _with_device(connector, device)}}
        return _decode(await self._call("PUT", path, auth, body), "attachment", _ATTACHMENT)

    async def complete_attachment(self, attachment_id: str, auth: Auth) -> None:
        path = f"/attachments/{quote(attachment_id, safe='')}/action"
        await self._call("POST", path, auth, {"os-complete": None})

    async def delete_attachment(self, attachment_id: str, auth: Auth) -> None:
        """A missing attachment is ignored."""
        await self._delete("attachments", attachment_id, auth)

    # Requests

    async def _act(self, volume_id: str, action: Body, auth: Auth, *, version: str = BASE_VERSION) -> None:
        await self._call("POST", f"/volumes/{quote(volume_id, safe='')}/action", auth, action, version=version)

    async def _show(
        self, noun: str, key: str, ident: str, auth: Auth, decoder: Decoder[T], *, version: str = BASE_VERSION
    ) -> T | None:
        try:
            response = await self._call("GET", f"/{noun}/{quote(ident, safe='')}", auth, version=version)
        except VolumeError as error:
            if error.status == 404:
                return None
            raise
        # An id such as `detail` leads to another resource.
        return _decode(response, key, decoder) if key in response else None

    async def _list(
        self, path: str, key: str, auth: Auth, filters: Mapping[str, str] | None, decoder: Decoder[list[T]]
    ) -> list[T]:
        """Fetch all pages."""
        found: list[T] = []
        query = dict(filters or {})
        while True:
            response = await self._call("GET", f"/{path}?{urlencode(query)}", auth, version=MULTIATTACH_VERSION)
            page = _decode(response, key, decoder)
            found += page
            links = f"{key}_links"
            if not page or links not in response or not _decode(response, links, _LINKS):
                return found
            query["marker"] = _decode(response, key, _IDENTITIES)[-1].id

    async def _delete(self, noun: str, ident: str, auth: Auth) -> None:
        try:
            await self._call("DELETE", f"/{noun}/{quote(ident, safe='')}", auth)
        except VolumeError as error:
            if error.status != 404:
                raise

    async def _call(
        self, method: str, path: str, auth: Auth, json: Body | None = None, *, version: str = BASE_VERSION
    ) -> dict[str, Raw]:
        """The members of the response, not decoded yet."""
        headers = {
            "X-Auth-Token": auth.token,
            "Accept": "application/json",
            "OpenStack-API-Version": _VERSION_HEADER.format(version),
        }
        if auth.is_service:
            # Cinder lets only services detach volumes of servers, and identifies services by this header.
            headers["X-Service-Token"] = auth.token
        response = await self._caller.request(method, _path(auth, path), headers=headers, json=json)
        if response.status >= 400:
            raise _error(response.status, response.body)
        with valid_response("volume"):
            return _DOCUMENT.decode(response.body) if response.body else {}


@valid_response("volume")
def _decode(response: dict[str, Raw], key: str, decoder: Decoder[T]) -> T:
    return decoder.decode(response[key])


def _path(auth: Auth, path: str) -> str:
    """Services before 3.67 require the project in the path."""
    return f"/v3/{quote(auth.project_id, safe='')}{path}" if auth.project_id else f"/v3{path}"


def _with_device(connector: Body, device: str | None) -> Body:
    return {**connector, "mountpoint": device} if device else connector


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
