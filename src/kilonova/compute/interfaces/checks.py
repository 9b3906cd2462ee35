"""Checks of an interface attachment: of the request before anything is written, and errors of a failed attachment."""

from __future__ import annotations

import re

from msgspec import Struct, structs

from kilonova.compute.servers import requested_networks
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.compute.servers.server import Server
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden, HttpError, NotFound
from kilonova.operations.errors import Failed

_NETWORK_ERROR = re.compile(r"the network service answered (\d{3}) (\w*):")
# Errors that users see with another status than that of the network service.
_ERROR_BY_KIND: dict[str, type[HttpError]] = {"OverQuota": Forbidden, "IpAddressGenerationFailure": BadRequest}
_ERROR_BY_STATUS: dict[int, type[HttpError]] = {403: Forbidden, 404: NotFound, 409: Conflict}


class RequestedAddress(Struct, frozen=True):
    ip_address: str


class RequestedAttachment(Struct, frozen=True):
    """`interfaceAttachment` of a request."""

    net_id: str | None = None
    port_id: str | None = None
    fixed_ips: list[RequestedAddress] = []
    tag: str | None = None


def check_body(requested: RequestedAttachment) -> None:
    if requested.net_id and requested.port_id:
        raise BadRequest("Must not input both network_id and port_id")
    if requested.fixed_ips and not requested.net_id:
        raise BadRequest("Must input network_id when request IP address")


async def resolve_request(ctx: Context, requested: RequestedAttachment, project_id: str) -> RequestedInterface:
    if not requested.net_id and not requested.port_id:
        found = await requested_networks.default_networks(ctx, allocate=False)
        if not found:
            raise BadRequest("No specific network was requested and none are available for this project.")
        return structs.replace(found[0], tag=requested.tag)
    network = ctx.services.network
    if requested.port_id and await network.port(requested.port_id, ctx.auth_token) is None:
        raise NotFound(f"Port id {requested.port_id} could not be found.")
    if requested.net_id and await network.network(requested.net_id, ctx.auth_token) is None:
        raise NotFound(f"Network {requested.net_id} could not be found.")
    wanted = {"uuid": requested.net_id, "port": requested.port_id, "tag": requested.tag}
    if requested.fixed_ips:
        wanted["fixed_ip"] = requested.fixed_ips[0].ip_address
    return (await requested_networks.resolve_list(ctx, [wanted], project_id))[0]


def check_new(server: Server, wanted: RequestedInterface) -> None:
    if wanted.port and server.find_interface(wanted.port):
        raise Conflict(f"Port {wanted.port} is still in use.")


def attach_error(server_id: str, failure: Failed) -> HttpError:
    """The response error for an interface that could not be attached."""
    match = _NETWORK_ERROR.search(str(failure.fault or ""))
    if match is None:
        return HttpError(f"Failed to attach network adapter device to {server_id}: {failure}")
    return (_ERROR_BY_KIND.get(match[2]) or _ERROR_BY_STATUS.get(int(match[1]), BadRequest))(str(failure))
