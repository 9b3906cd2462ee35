"""Volume swap: other services replace a server's volume by another one, to migrate its data."""

from __future__ import annotations

from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.swap_volume import NewVolume, SwapVolume, SwapVolumeParams
from kilonova.compute.servers import action_checks
from kilonova.compute.servers.server import Server
from kilonova.compute.volume_attachments import checks
from kilonova.compute.volume_checks import check_not_encrypted, check_zone
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.parameter_types import is_true
from kilonova.store import Transaction
from kilonova.volume.client import Volume

RULE = "os_compute_api:os-volumes-attachments:swap"


async def swap(ctx: Context, server_id: str, volume_id: str, requested: dict[str, object]) -> Response:
    """Begin to copy the volume to the new one and to replace it in the guest."""
    async with ctx.db.transaction() as tx:
        server, _ = await _lock_ready_server(ctx, tx, server_id, volume_id)
    new_id = str(requested["volumeId"])
    # The service's own token: the caller may lack access to volumes of the server's project.
    auth = await ctx.services.identity.auth()
    old = await ctx.services.volume.show(volume_id, auth)
    new = await ctx.services.volume.show(new_id, auth)
    if new is None or new.tenant_id not in (None, server.project_id):
        raise BadRequest(checks.not_found_message(new_id))
    _check(ctx, old, new)
    async with ctx.db.transaction() as tx:
        server, device = await _lock_ready_server(ctx, tx, server_id, volume_id)
        await check_zone(ctx, tx, server, new)
        await checks.check_not_attached_elsewhere(tx, server_id, new.id, multiattach=new.multiattach)
        if "delete_on_termination" in requested:
            await devices.set_delete_on_termination(tx, device.uuid, is_true(requested["delete_on_termination"]))
        volume = NewVolume(id=new.id, size=new.size, multiattach=new.multiattach)
        params = SwapVolumeParams(device=device.uuid, old=volume_id, new=volume)
        await action_checks.begin_operation(ctx, tx, server, SwapVolume, params)
    return Response()


async def _lock_ready_server(
    ctx: Context, tx: Transaction, server_id: str, volume_id: str
) -> tuple[Server, BlockDevice]:
    server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="swap_volume")
    device = await devices.of_volume(tx, server_id, volume_id)
    if device is None:
        raise NotFound(f"volume_id not found: {volume_id}")
    return server, device


def _check(ctx: Context, old: Volume | None, new: Volume) -> None:
    if old is None or old.status != "in-use":
        raise checks.invalid("the old volume must be in use to be swapped.")
    if old.multiattach and len(old.attachments) > 1:
        raise Conflict("Swapping multi-attach volumes with more than one read/write attachment is not supported.")
    if new.status != "available":
        raise checks.invalid("Volume must be detached in order to swap.")
    checks.check_available(ctx, new)
    check_not_encrypted(new)
    if new.size < old.size:
        raise checks.invalid("New volume must be the same size or larger.")
