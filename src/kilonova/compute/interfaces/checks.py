"""What interface a server is to get: refused as users know it before anything is written, or after it failed."""

from __future__ import annotations

import re
from typing import Any

from kilonova.compute.operations import nics
from kilonova.compute.servers import networks
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden, HttpError, NotFound
from kilonova.operations.errors import Failed
from kilonova.store import Row

Item = dict[str, Any]
_TOLD = re.compile(r"the network service answered (\d{3}) (\w*):")
# What the network service calls a refusal that users know by another status than its own.
_STATUSES: dict[str, type[HttpError]] = {"OverQuota": Forbidden, "IpAddressGenerationFailure": BadRequest}
_ERRORS: dict[int, type[HttpError]] = {403: Forbidden, 404: NotFound, 409: Conflict}


def check_body(asked: Item) -> None:
    if asked.get("net_id") and asked.get("port_id"):
        raise BadRequest("Must not input both network_id and port_id")
    if asked.get("fixed_ips") and not asked.get("net_id"):
        raise BadRequest("Must input network_id when request IP address")


async def requested(ctx: Context, asked: Item) -> Item:
    """The interface in the form in which a boot has them."""
    if not asked.get("net_id") and not asked.get("port_id"):
        found = await networks.default(ctx, allocate=False)
        if not found:
            raise BadRequest("No specific network was requested and none are available for this project.")
        return {**found[0], "tag": asked.get("tag")}
    wanted = {"uuid": asked.get("net_id"), "port": asked.get("port_id"), "tag": asked.get("tag")}
    if asked.get("fixed_ips"):
        wanted["fixed_ip"] = asked["fixed_ips"][0]["ip_address"]
    network = ctx.services.network
    if wanted["port"] and await network.port(wanted["port"], ctx.auth_token) is None:
        raise NotFound(f"Port id {wanted['port']} could not be found.")
    if wanted["uuid"] and await network.network(wanted["uuid"], ctx.auth_token) is None:
        raise NotFound(f"Network {wanted['uuid']} could not be found.")
    return (await networks.chosen(ctx, [wanted]))[0]


def check_new(row: Row, wanted: Item) -> None:
    if wanted["port"] and nics.find(row, wanted["port"]):
        raise Conflict(f"Port {wanted['port']} is still in use.")


def refusal(server_id: str, failure: Failed) -> HttpError:
    """The answer to who asked for an interface that then could not be attached."""
    told = _TOLD.search(str(failure.fault or ""))
    if told is None:
        return HttpError(f"Failed to attach network adapter device to {server_id}: {failure}")
    return (_STATUSES.get(told[2]) or _ERRORS.get(int(told[1]), BadRequest))(str(failure))
