"""The volume service's client of compute: sends external events, looks up servers and their volume attachments."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from kilonova.http.client import Refused, Unreachable

if TYPE_CHECKING:
    from kilonova.http.client import Caller

# The first version with all the events that the volume service sends.
_VERSION = "compute 2.93"


class ComputeError(Refused):
    """Compute refused."""


class ComputeClient:
    """The base URL of `caller` has no version. Every method may raise ComputeError or Unreachable."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def send_event(self, name: str, server_id: str, volume_id: str, token: str, *, ok: bool = True) -> None:
        """Send an event about a server's volume. A deleted server is ignored."""
        status = "completed" if ok else "failed"
        event = {"name": name, "server_uuid": server_id, "tag": volume_id, "status": status}
        response = await self._caller.request(
            "POST",
            "/v2.1/os-server-external-events",
            headers={"X-Auth-Token": token, "OpenStack-API-Version": _VERSION},
            json={"events": [event]},
        )
        if response.status >= 500 or response.status == 429:
            raise Unreachable(f"compute answered {response.status}")
        if response.status >= 400 and response.status != 404:
            raise ComputeError(response.status, f"compute answered {response.status} to an event")

    async def has_server(self, server_id: str, token: str) -> bool:
        """Whether the token may see the server."""
        response = await self._caller.request(
            "GET",
            f"/v2.1/servers/{quote(server_id, safe='')}",
            headers={"X-Auth-Token": token, "OpenStack-API-Version": _VERSION},
        )
        if response.status >= 500 or response.status == 429:
            raise Unreachable(f"compute answered {response.status}")
        if response.status not in (200, 404):
            raise ComputeError(response.status, f"compute answered {response.status} to a request for a server")
        return response.status == 200

    async def attachment_of(self, server_id: str, volume_id: str, token: str) -> str | None:
        """The id of the server's attachment of the volume, empty if it is not created yet.

        None if the server does not have the volume.
        """
        response = await self._caller.request(
            "GET",
            f"/v2.1/servers/{quote(server_id, safe='')}/os-volume_attachments/{quote(volume_id, safe='')}",
            headers={"X-Auth-Token": token, "OpenStack-API-Version": _VERSION},
        )
        if response.status == 404:
            return None
        if response.status >= 500 or response.status == 429:
            raise Unreachable(f"compute answered {response.status}")
        if response.status >= 400:
            raise ComputeError(response.status, f"compute answered {response.status} to a request for an attachment")
        return str(response.json()["volumeAttachment"]["attachment_id"] or "")
