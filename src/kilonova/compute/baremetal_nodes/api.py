"""Routes of bare metal nodes. Nodes were shown on behalf of their own service, and never changed from here."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotSupported

RULE = "os_compute_api:os-baremetal-nodes:"
PATH = "/os-baremetal-nodes"


@api.route("GET", PATH, policy=RULE + "list")
async def index(ctx: Context) -> None:
    """List bare metal nodes: there is no service that has any."""
    raise _unavailable()


@api.route("GET", PATH + "/{id}", policy=RULE + "show")
async def show(ctx: Context, id: str) -> None:
    """Show a bare metal node: there is no service that has any."""
    raise _unavailable()


@api.route("POST", PATH)
async def create(ctx: Context) -> None:
    """Is never done here: the bare metal service makes its nodes."""
    raise _not_here()


@api.route("DELETE", PATH + "/{id}")
async def delete(ctx: Context, id: str) -> None:
    """Is never done here: the bare metal service deletes its nodes."""
    raise _not_here()


@api.action("add_interface", PATH + "/{id}/action", body={})
async def add_interface(ctx: Context, id: str) -> None:
    """Is never done here: the bare metal service has the ports of its nodes."""
    raise _not_here()


@api.action("remove_interface", PATH + "/{id}/action", body={})
async def remove_interface(ctx: Context, id: str) -> None:
    """Is never done here: the bare metal service has the ports of its nodes."""
    raise _not_here()


def _unavailable() -> NotSupported:
    return NotSupported("There is no bare metal service to ask.")


def _not_here() -> BadRequest:
    return BadRequest("Command not supported. Nodes are changed by the bare metal service alone.")
