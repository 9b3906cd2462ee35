"""Checks of an interface attachment: of the request before anything is written, and errors of a failed attachment."""

from __future__ import annotations

import re
from typing import Any

from kilonova.compute.operations.steps import interfaces
from kilonova.compute.servers import requested_networks
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden, HttpError, NotFound
from kilonova.operations.errors import Failed
from kilonova.store import Row

Item = dict[str, Any]
_NETWORK_ERROR = re.compile(r"the network service answered (\d{3}) (\w*):")
# Errors that users see with another status than that of the network service.
_ERROR_BY_KIND: dict[str, type[HttpError]] = {"OverQuota": Forbidden, "IpAddressGenerationFailure": BadRequest}
_ERROR_BY_STATUS: dict[int, type[HttpError]] = {403: Forbidden, 404: NotFound, 409: Conflict}


def check_body(requested: Item) -> None:
    if requested.get("net_id") and requested.get("port_id"):
        raise BadRequest("Must not input both network_id and port_id")
    if requested.get("fixed_ips") and not requested.get("net_id"):
        raise BadRequest("Must input network_id when request IP address")


async def resolve_request(ctx: Context, requested: Item) -> Item:
    """The requested interface in the form of a new server's `networks`."""
    if not requested.get("net_id") and not requested.get("port_id"):
        found = await requested_networks.default_networks(ctx, allocate=False)
        if not found:
            raise BadRequest("No specific network was requested and none are available for this project.")
        return {**found[0], "tag": requested.get("tag")}
    wanted = {"uuid": requested.get("net_id"), "port": requested.get("port_id"), "tag": requested.get("tag")}
    if requested.get("fixed_ips"):
        wanted["fixed_ip"] = requested["fixed_ips"][0]["ip_address"]
    network = ctx.services.network
    if wanted["port"] and await network.port(wanted["port"], ctx.auth_token) is None:
        raise NotFound(f"Port id {wanted['port']} could not be found.")
    if wanted["uuid"] and await network.network(wanted["uuid"], ctx.auth_token) is None:
        raise NotFound(f"Network {wanted['uuid']} could not be found.")
    return (await requested_networks.resolve_list(ctx, [wanted]))[0]


def check_new(row: Row, wanted: Item) -> None:
    if wanted["port"] and interfaces.find(row, wanted["port"]):
        raise Conflict(f"Port {wanted['port']} is still in use.")


def attach_error(server_id: str, failure: Failed) -> HttpError:
    """The response error for an interface that could not be attached."""
    match = _NETWORK_ERROR.search(str(failure.fault or ""))
    if match is None:
        return HttpError(f"Failed to attach network adapter device to {server_id}: {failure}")
    return (_ERROR_BY_KIND.get(match[2]) or _ERROR_BY_STATUS.get(int(match[1]), BadRequest))(str(failure))
