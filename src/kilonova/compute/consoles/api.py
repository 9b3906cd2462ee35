"""Routes of consoles: the console log of a server, console URLs, and the host and port behind a console token."""

from __future__ import annotations

import re

from kilonova.compute.api import api
from kilonova.compute.consoles import schemas, tokens, views
from kilonova.compute.servers import host_query, model
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import CheckDisplay, GetConsoleLog
from kilonova.hosts.transport import HostRefused, NoDisplay
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound, NotSupported, Unauthorized

__all__ = ["views"]

OUTPUT = "os_compute_api:os-console-output"
REMOTE = "os_compute_api:os-remote-consoles"
TOKENS = "os_compute_api:os-console-auth-tokens"
CONSOLES = "/servers/{server_id}/remote-consoles"
TOKEN = "/os-console-auth-tokens/{token}"
EVERY_TYPE = api.behaviour("links to consoles of every type are looked up")
# Control characters that a terminal would execute.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@api.action("os-getConsoleOutput", body=schemas.OUTPUT, checks=[OUTPUT])
async def output(ctx: Context, server_id: str) -> Response:
    """Show the console log of a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=OUTPUT)
    length = ctx.body["os-getConsoleOutput"].get("length")
    lines = None if length is None or int(length) < 0 else int(length)
    try:
        found = await host_query.query_host(ctx, server, GetConsoleLog(guest_id=server_id, lines=lines))
    except HostRefused:
        raise NotFound("Guest does not have a console available.") from None
    text = _CONTROLS.sub("", found.decode("utf-8", "replace"))
    # N lines have N - 1 line breaks between them.
    return Response({"output": text if lines is None else text.removesuffix("\n")})


@api.route(
    "POST",
    CONSOLES,
    checks=[REMOTE],
    body=schemas.CREATE,
    query={},
    shows=("remote_console", "remote console", False),
)
async def create(ctx: Context, server_id: str) -> Response:
    """Create a URL for a console of a server."""
    requested = ctx.body["remote_console"]
    if requested["type"] not in schemas.TYPES[requested["protocol"]]:
        raise BadRequest(f"Invalid console type {requested['type']}")
    url = await _console_url(ctx, server_id, requested["type"])
    return Response({"remote_console": ctx.render("remote console", {**requested, "url": url})})


@api.action("os-getVNCConsole", body=schemas.legacy("vnc"), checks=[REMOTE], shows=("console", "console", False))
async def vnc(ctx: Context, server_id: str) -> Response:
    """Create a URL for the VNC console of a server."""
    return await _legacy_console(ctx, server_id, ctx.body["os-getVNCConsole"]["type"])


@api.action("os-getSPICEConsole", body=schemas.legacy("spice"), checks=[REMOTE], shows=("console", "console", False))
async def spice(ctx: Context, server_id: str) -> Response:
    """Create a URL for the SPICE console of a server."""
    return await _legacy_console(ctx, server_id, ctx.body["os-getSPICEConsole"]["type"])


@api.action("os-getSerialConsole", body=schemas.legacy("serial"), checks=[REMOTE], shows=("console", "console", False))
async def serial(ctx: Context, server_id: str) -> Response:
    """Create a URL for the serial console of a server."""
    return await _legacy_console(ctx, server_id, ctx.body["os-getSerialConsole"]["type"])


@api.action("os-getRDPConsole", body=schemas.legacy("rdp"), checks=[REMOTE], shows=("console", "console", False))
async def rdp(ctx: Context, server_id: str) -> Response:
    """Refuse an RDP console (400): no host has any."""
    return await _legacy_console(ctx, server_id, ctx.body["os-getRDPConsole"]["type"])


@api.route("GET", TOKEN, policy=TOKENS, query={}, shows=("console", "console access", False))
async def show(ctx: Context, token: str) -> Response:
    """Show the host and port of the console that a token is for."""
    console = await tokens.find_console(ctx.db, token, ctx.now)
    if console is None:
        raise NotFound("Token not found")
    if not ctx.has_behaviour(EVERY_TYPE):
        raise Unauthorized("The requested console type details are not accessible")
    await _check_display(ctx, console.server, console.type)
    # The display listens nowhere, so there is no port: the proxy reaches the display through the host's agent.
    shown = {"server_id": console.server.id, "host": console.server.host, "port": None}
    return Response({"console": ctx.render("console access", shown)})


async def _legacy_console(ctx: Context, server_id: str, type: str) -> Response:
    url = await _console_url(ctx, server_id, type)
    return Response({"console": ctx.render("console", {"type": type, "url": url})})


async def _console_url(ctx: Context, server_id: str, type: str) -> str:
    """Check that the console exists and create a URL."""
    server = await model.find(ctx, ctx.db, server_id, rule=REMOTE)
    await _check_display(ctx, server, type)
    return await tokens.create_url(ctx, server, type)


async def _check_display(ctx: Context, server: Server, type: str) -> None:
    if type not in tokens.DISPLAY_BY_TYPE:
        raise _unavailable(type)
    try:
        verb = CheckDisplay(guest_id=server.id, kind=tokens.DISPLAY_BY_TYPE[type])
        await host_query.query_host(ctx, server, verb)
    except NoDisplay:
        raise _unavailable(type) from None
    except HostRefused as refusal:
        raise NotSupported(f"The host could not open the console: {refusal.public}") from None


def _unavailable(type: str) -> BadRequest:
    return BadRequest(f"Unavailable console type {type}.")
