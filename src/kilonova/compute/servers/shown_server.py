"""Servers as views show them: with facts that are derived from operations, hosts and other tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.block_devices.model import ListedVolume
from kilonova.compute.server_groups import model as groups
from kilonova.compute.server_tags import model as tags
from kilonova.compute.servers import floating_ips, states
from kilonova.compute.servers.server import Server
from kilonova.compute.zones import model as zones
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.service import Service
from kilonova.http import Context
from kilonova.http.loop_yielder import collect
from kilonova.operations import views as operations
from kilonova.store import Reader


class ShownServer(Struct, frozen=True):
    """`floating` has the floating IPs by port, also of other servers. `admin_pass` is for the response of a rebuild."""

    server: Server
    status: str
    task_state: str | None
    progress: int
    zone: str
    server_groups: Sequence[str]
    tags: Sequence[str]
    volumes: Sequence[ListedVolume]
    host_status: str
    floating: Mapping[str, Sequence[str]]
    admin_pass: str = ""


async def enrich(
    ctx: Context, servers: Sequence[Server], view: str, busy: Collection[str] = frozenset()
) -> list[ShownServer]:
    """Add status and task state from operations, zone and host status from the host, and what else the view shows.

    `busy` are the ids of servers that had an unfinished operation when they were read. Leaves out servers whose delete
    has just ended.
    """
    ids = [server.id for server in servers]
    running = await operations.find_running(ctx.db, ids)
    stale = [server.id for server in servers if server.id in busy and not server.deleted and server.id not in running]
    if stale:
        servers = await _read_again(ctx.db, servers, stale)
    hosts = {server.host for server in servers if server.host}
    zone_of = await zones.zone_of_hosts(ctx.db, hosts, ctx.services.config.scheduler.default_zone)
    host_status = await _host_status(ctx, hosts) if ctx.shows(view, "host_status") else {}
    group_of = await groups.of_servers(ctx.db, ids) if ctx.shows(view, "server_groups") else {}
    tags_of = await tags.of_servers(ctx.db, ids) if ctx.shows(view, "tags") else {}
    attached = ctx.shows(view, "os-extended-volumes:volumes_attached")
    volumes_of = await block_devices.of_servers(ctx.db, ids) if attached else {}
    floating = await floating_ips.addresses_by_port(ctx, servers)

    def shown(server: Server) -> ShownServer:
        operation = running.get(server.id)
        task_state = operation.task_state if operation else None
        return ShownServer(
            server=server,
            status=states.status(server.vm_state, task_state),
            task_state=task_state,
            progress=operation.progress if operation else 0,
            zone=zone_of[server.host] if server.host else server.pinned_zone or "",
            server_groups=[group_of[server.id]] if server.id in group_of else [],
            tags=tags_of.get(server.id, []),
            volumes=volumes_of.get(server.id, []),
            host_status="" if server.deleted else host_status.get(server.host or "", ""),
            floating=floating,
        )

    return await collect(map(shown, servers))


async def _read_again(reader: Reader, servers: Sequence[Server], stale: Sequence[str]) -> list[Server]:
    """Read servers again whose operation has ended since, so that none shows its old state without a task."""
    rows = await reader.fetch("SELECT * FROM servers WHERE id = ANY($1)", stale)
    fresh = {server.id: server for server in Server.decode_all(rows)}
    return [
        fresh.get(server.id, server) for server in servers if server.id not in fresh or not fresh[server.id].deleted
    ]


async def _host_status(ctx: Context, hosts: Iterable[str]) -> dict[str, str]:
    rows = await ctx.db.fetch("SELECT * FROM services WHERE program = 'nova-compute' AND host = ANY($1)", sorted(hosts))
    return {service.host: _status_of(service, ctx) for service in Service.decode_all(rows)}


def _status_of(service: Service, ctx: Context) -> str:
    if service.forced_down:
        return "DOWN"
    if not is_up(service, ctx.now, ctx.services.config.hosts.down_seconds):
        return "UNKNOWN"
    return "MAINTENANCE" if service.disabled else "UP"
