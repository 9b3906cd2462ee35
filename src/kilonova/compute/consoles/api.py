"""Routes of consoles: the log of a server's serial console, links to its screen, and where a link leads."""

from __future__ import annotations

import re

from kilonova.compute.api import api
from kilonova.compute.consoles import links, schemas, views
from kilonova.compute.servers import looking, model
from kilonova.hosts.messages import Display, LookConsole, LookDisplay
from kilonova.hosts.transport import HostFailed
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Gone, NotFound, NotSupported, Unauthorized
from kilonova.store import Row

__all__ = ["views"]

OUTPUT = "os_compute_api:os-console-output"
REMOTE = "os_compute_api:os-remote-consoles"
TOKENS = "os_compute_api:os-console-auth-tokens"
CONSOLES = "/servers/{server_id}/remote-consoles"
TOKEN = "/os-console-auth-tokens/{token}"
EVERY_TYPE = "links to consoles of every type are looked up"
# Terminals obey these.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@api.action("os-getConsoleOutput", body=schemas.OUTPUT, checks=[OUTPUT])
async def output(ctx: Context, server_id: str) -> Answer:
    """Show what a server has written to its console."""
    row = await model.find(ctx, ctx.db, server_id, rule=OUTPUT)
    length = ctx.body["os-getConsoleOutput"].get("length")
    lines = None if length is None or int(length) < 0 else int(length)
    try:
        found: bytes = await looking.look(ctx, row, LookConsole(guest_id=server_id, lines=lines))
    except HostFailed:
        raise NotFound("Guest does not have a console available.") from None
    text = _CONTROLS.sub("", found.decode("utf-8", "replace"))
    # So many lines have one line break less between them.
    return Answer({"output": text if lines is None else text.removesuffix("\n")})


@api.route(
    "POST",
    CONSOLES,
    checks=[REMOTE],
    body=schemas.CREATE,
    query={},
    shows=("remote_console", "remote console", False),
)
async def create(ctx: Context, server_id: str) -> Answer:
    """Get a link to a console of a server."""
    asked = ctx.body["remote_console"]
    if asked["type"] not in schemas.TYPES[asked["protocol"]]:
        raise BadRequest(f"Invalid console type {asked['type']}")
    url = await _link(ctx, server_id, asked["type"])
    return Answer({"remote_console": ctx.render("remote console", {**asked, "url": url})})


@api.action("os-getVNCConsole", body=schemas.old("vnc"), checks=[REMOTE], shows=("console", "console", False))
async def vnc(ctx: Context, server_id: str) -> Answer:
    """Get a link to the VNC console of a server."""
    return await _old(ctx, server_id, ctx.body["os-getVNCConsole"]["type"])


@api.action("os-getSPICEConsole", body=schemas.old("spice"), checks=[REMOTE], shows=("console", "console", False))
async def spice(ctx: Context, server_id: str) -> Answer:
    """Get a link to the SPICE console of a server."""
    return await _old(ctx, server_id, ctx.body["os-getSPICEConsole"]["type"])


@api.action("os-getSerialConsole", body=schemas.old("serial"), checks=[REMOTE], shows=("console", "console", False))
async def serial(ctx: Context, server_id: str) -> Answer:
    """Get a link to the serial console of a server."""
    return await _old(ctx, server_id, ctx.body["os-getSerialConsole"]["type"])


@api.action("os-getRDPConsole", body=schemas.old("rdp"), checks=[REMOTE])
async def rdp(ctx: Context, server_id: str) -> Answer:
    """Is gone for good."""
    raise Gone("This was removed from the API.")


@api.route("GET", TOKEN, policy=TOKENS, query={}, shows=("console", "console access", False))
async def show(ctx: Context, token: str) -> Answer:
    """Show where the console is that a link leads to."""
    row = await links.find(ctx.db, token, ctx.now)
    if row is None:
        raise NotFound("Token not found")
    if not ctx.behaves(EVERY_TYPE):
        raise Unauthorized("The requested console type details are not accessible")
    display = await _display(ctx, row, row["type"])
    shown = {"server_id": row["id"], "host": display.host, "port": display.port}
    return Answer({"console": ctx.render("console access", shown)})


async def _old(ctx: Context, server_id: str, type: str) -> Answer:
    url = await _link(ctx, server_id, type)
    return Answer({"console": ctx.render("console", {"type": type, "url": url})})


async def _link(ctx: Context, server_id: str, type: str) -> str:
    """Of a console that is there now; where it is will be asked again when somebody looks at it."""
    row = await model.find(ctx, ctx.db, server_id, rule=REMOTE)
    await _display(ctx, row, type)
    return await links.make(ctx, row, type)


async def _display(ctx: Context, row: Row, type: str) -> Display:
    if type not in links.SERVED:
        raise _unavailable(type)
    try:
        verb = LookDisplay(guest_id=row["id"], kind=links.SERVED[type])
        display: Display = await looking.look(ctx, row, verb)
    except HostFailed as error:
        if error.kind == "no display":
            raise _unavailable(type) from None
        raise NotSupported(f"The console could not be had: {error.public}") from None
    return display


def _unavailable(type: str) -> BadRequest:
    return BadRequest(f"Unavailable console type {type}.")
