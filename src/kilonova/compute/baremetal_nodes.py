"""Routes of bare metal nodes, an old read-only proxy. All of them fail: there is no bare metal service."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotSupported

RULE = "os_compute_api:os-baremetal-nodes:"
PATH = "/os-baremetal-nodes"


@api.route("GET", PATH, policy=RULE + "list")
async def index(ctx: Context) -> None:
    """List bare metal nodes: refused, there is no bare metal service."""
    raise _unavailable()


@api.route("GET", PATH + "/{id}", policy=RULE + "show")
async def show(ctx: Context, id: str) -> None:
    """Show a bare metal node: refused, there is no bare metal service."""
    raise _unavailable()


@api.route("POST", PATH, authenticated=True)
async def create(ctx: Context) -> None:
    """Create a bare metal node: refused, use the bare metal service."""
    raise _read_only()


@api.route("DELETE", PATH + "/{id}", authenticated=True)
async def delete(ctx: Context, id: str) -> None:
    """Delete a bare metal node: refused, use the bare metal service."""
    raise _read_only()


@api.action("add_interface", PATH + "/{id}/action", authenticated=True, body={})
async def add_interface(ctx: Context, id: str) -> None:
    """Add an interface to a bare metal node: refused, use the bare metal service."""
    raise _read_only()


@api.action("remove_interface", PATH + "/{id}/action", authenticated=True, body={})
async def remove_interface(ctx: Context, id: str) -> None:
    """Remove an interface from a bare metal node: refused, use the bare metal service."""
    raise _read_only()


def _unavailable() -> NotSupported:
    return NotSupported("There is no bare metal service.")


def _read_only() -> BadRequest:
    return BadRequest("Command not supported. Use the bare metal service to change nodes.")
