"""The volume service's client of compute: it tells of what it did to the volumes of servers, and asks who has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kilonova.http.client import Refused, Unreachable

if TYPE_CHECKING:
    from kilonova.http.client import Caller

# The first version that knows all the events that the volume service has to tell.
_VERSION = "compute 2.93"


class ComputeError(Refused):
    """Compute refused."""


class ComputeClient:
    """The caller's base is the service's, without a version."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def tell(self, name: str, server_id: str, volume_id: str, token: str, *, ok: bool = True) -> None:
        """An event of a server's volume. A server that is gone is fine. Raises ComputeError or Unreachable."""
        status = "completed" if ok else "failed"
        event: dict[str, Any] = {"name": name, "server_uuid": server_id, "tag": volume_id, "status": status}
        answer = await self._caller.request(
            "POST",
            "/v2.1/os-server-external-events",
            headers={"X-Auth-Token": token, "OpenStack-API-Version": _VERSION},
            json={"events": [event]},
        )
        if answer.status >= 500 or answer.status == 429:
            raise Unreachable(f"compute answered {answer.status}")
        if answer.status >= 400 and answer.status != 404:
            raise ComputeError(answer.status, f"compute answered {answer.status} to an event")

    async def attachment_of(self, server_id: str, volume_id: str, token: str) -> str | None:
        """The id of the attachment by which the server has the volume, empty while there is none yet.

        None if the server does not have it. Raises as `tell` does.
        """
        answer = await self._caller.request(
            "GET",
            f"/v2.1/servers/{quote(server_id, safe='')}/os-volume_attachments/{quote(volume_id, safe='')}",
            headers={"X-Auth-Token": token, "OpenStack-API-Version": _VERSION},
        )
        if answer.status == 404:
            return None
        if answer.status >= 500 or answer.status == 429:
            raise Unreachable(f"compute answered {answer.status}")
        if answer.status >= 400:
            raise ComputeError(answer.status, f"compute answered {answer.status} to a look at a server's volume")
        return str(answer.json()["volumeAttachment"]["attachment_id"] or "")
