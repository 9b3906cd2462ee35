"""Routes of the file shares of a server. The guest mounts a share by its tag."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.attach_share import AttachShare, ShareParams
from kilonova.compute.operations.detach_share import DetachShare, DetachShareParams
from kilonova.compute.server_shares import model, views
from kilonova.compute.server_shares.model import ServerShare
from kilonova.compute.server_shares.views import ShownShare
from kilonova.compute.servers import action_checks, states
from kilonova.compute.servers import model as servers
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.parameter_types import UUID, Schema, request_body
from kilonova.identity.client import Auth
from kilonova.ids import new_id
from kilonova.share.client import Share
from kilonova.store import Reader, Transaction

__all__ = ["views"]

RULE = "os_compute_api:os-server-shares:"
SHARES = "/servers/{server_id}/shares"
SHARE = SHARES + "/{share_id}"
TRAITS = ("COMPUTE_STORAGE_VIRTIO_FS", "COMPUTE_MEM_BACKING_FILE")
_TAG: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-]*$"}
_CREATE = request_body("share", {"share_id": UUID, "tag": _TAG}, ["share_id"])
# The limit of virtiofs.
MAX_TAG_LENGTH = 36
_ONE = ("share", "server share", False)


@api.route("GET", SHARES, checks=[RULE + "index"], query={}, shows=("shares", "server share", True))
async def index(ctx: Context, server_id: str) -> Response:
    """List the shares of a server."""
    server = await servers.find(ctx, ctx.db, server_id, rule=RULE + "index")
    found = await model.of_server(ctx.db, server_id)
    return Response({"shares": [_shown(ctx, server, share) for share in found]})


@api.route("GET", SHARE, checks=[RULE + "show"], query={}, shows=_ONE)
async def show(ctx: Context, server_id: str, share_id: str) -> Response:
    """Show a share of a server."""
    server = await servers.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Response({"share": _shown(ctx, server, await _find(ctx.db, server_id, share_id))})


@api.route("POST", SHARES, checks=[RULE + "create"], body=_CREATE, query={}, status=201, shows=_ONE)
async def create(ctx: Context, server_id: str) -> Response:
    """Attach a share to a stopped server."""
    requested = ctx.body["share"]
    async with ctx.db.transaction() as tx:
        await _find_ready(ctx, tx, server_id, "create", "attach_share")
    share, location = await _find_share(ctx, requested["share_id"])
    async with ctx.db.transaction() as tx:
        server = await _find_ready(ctx, tx, server_id, "create", "attach_share")
        attached = await _new(ctx, tx, server, share, location, requested.get("tag") or share.id)
        await model.insert(tx, attached)
        await action_checks.begin_operation(ctx, tx, server, AttachShare, ShareParams(attached.id))
    return Response({"share": _shown(ctx, server, attached)})


@api.route("DELETE", SHARE, checks=[RULE + "delete"], query={})
async def delete(ctx: Context, server_id: str, share_id: str) -> Response:
    """Detach a share from a server that is stopped, or in error."""
    async with ctx.db.transaction() as tx:
        server = await _find_ready(ctx, tx, server_id, "delete", "detach_share")
        share = await _find(tx, server_id, share_id)
        if share.status in (model.ATTACHING, model.DETACHING):
            raise Conflict(f"Cannot detach share {share_id} while it is {share.status}")
        await model.set_status(tx, share.id, model.DETACHING)
        params = DetachShareParams(share.id, share.status)
        await action_checks.begin_operation(ctx, tx, server, DetachShare, params)
    return Response()


async def _find_ready(ctx: Context, tx: Transaction, server_id: str, rule: str, transition: str) -> Server:
    return await action_checks.find_ready(ctx, tx, server_id, rule=RULE + rule, transition=transition)


async def _find(reader: Reader, server_id: str, share_id: str) -> ServerShare:
    share = await model.find(reader, server_id, share_id)
    if share is None:
        raise NotFound(f"Share {share_id[:80]} is not attached to instance {server_id}.")
    return share


async def _find_share(ctx: Context, share_id: str) -> tuple[Share, str]:
    """The share as the caller sees it, and its export location."""
    auth = Auth(ctx.auth_token, ctx.token.project_id)
    share = await ctx.services.share.show(share_id, auth)
    if share is None:
        raise NotFound(f"Share {share_id} could not be found.")
    if share.status != "available":
        raise Conflict(f"Share {share_id} must be in status available to be attached, but it is {share.status}.")
    if share.share_proto.upper() != model.NFS:
        raise Conflict(f"Share {share_id} has the protocol {share.share_proto}: hosts can only mount {model.NFS}.")
    location = await ctx.services.share.export_location(share_id, await ctx.services.identity.auth())
    if location is None:
        raise Conflict(f"Share {share_id} has no export location.")
    return share, location


async def _new(ctx: Context, tx: Transaction, server: Server, share: Share, location: str, tag: str) -> ServerShare:
    if share.project_id not in (None, server.project_id):
        raise Conflict(f"Share {share.id} belongs to another project than instance {server.id}.")
    if len(tag) > MAX_TAG_LENGTH:
        raise BadRequest(f"tag: virtiofs tags have at most {MAX_TAG_LENGTH} characters, found {len(tag)}.")
    for other in await model.of_server(tx, server.id):
        if other.share_id == share.id:
            raise Conflict(f"Share '{share.id}' is already attached to instance {server.id}.")
        if other.tag == tag:
            raise Conflict(
                f"Share '{other.share_id}' is attached to instance {server.id} with the tag '{tag}' already."
            )
    for trait in TRAITS:
        found = await tx.fetch_value(action_checks.HAS_TRAIT, server.host, server.hypervisor_hostname, trait)
        if found is None:
            raise Conflict(f"The host of instance {server.id} cannot present shares: it lacks the trait {trait}.")
    return ServerShare(
        id=new_id(),
        server_id=server.id,
        share_id=share.id,
        tag=tag,
        share_proto=model.NFS,
        export_location=location,
        built_in=ctx.services.config.is_built_in("share"),
        access_to=str(await tx.fetch_value("SELECT host_ip FROM hypervisors WHERE host = $1", server.host)),
        status=model.ATTACHING,
        created_at=ctx.now,
        updated_at=ctx.now,
    )


def _shown(ctx: Context, server: Server, share: ServerShare) -> dict[str, object]:
    return ctx.render("server share", ShownShare(share, server.power_state == states.RUNNING))
