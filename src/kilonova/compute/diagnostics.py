"""Server diagnostics: what the hypervisor reports of a running server."""

from __future__ import annotations

from msgspec import Struct, convert

from kilonova.compute.api import api
from kilonova.compute.servers import host_query, model
from kilonova.hosts.messages.verbs import GetDiagnostics
from kilonova.hosts.transport import HostRefused
from kilonova.http import Context, Response
from kilonova.http.errors import NotSupported

RULE = "os_compute_api:os-server-diagnostics"
ONE_FORM = api.behaviour("diagnostics have one form whatever the hypervisor")
FIELDS = (
    *("state", "driver", "hypervisor", "hypervisor_os", "uptime", "config_drive", "num_cpus", "num_nics"),
    *("num_disks", "memory_details", "cpu_details", "nic_details", "disk_details"),
)
# The keys of disks and NICs, and their names in the old form.
_DISK = {"read_bytes": "read", "read_requests": "read_req", "write_bytes": "write", "write_requests": "write_req"}
_NIC = {
    **{f"{direction}_octets": direction for direction in ("rx", "tx")},
    **{name: name for d in ("rx", "tx") for name in (f"{d}_packets", f"{d}_errors", f"{d}_drop")},
}
Item = dict[str, object]


@api.route("GET", "/servers/{server_id}/diagnostics", checks=[RULE], query={})
async def show(ctx: Context, server_id: str) -> Response:
    """Show the diagnostics of a running server."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE)
    try:
        found = await host_query.query_host(ctx, server, GetDiagnostics(guest_id=server_id))
    except HostRefused as error:
        raise NotSupported(f"The host could not read the diagnostics: {error.public}") from None
    return Response({name: found.get(name) for name in FIELDS} if ctx.has_behaviour(ONE_FORM) else old_form(found))


class _Memory(Struct, frozen=True):
    maximum: int | None = None


class _Details(Struct, frozen=True):
    cpu_details: list[Item] | None = None
    memory_details: _Memory | None = None
    disk_details: list[Item] | None = None
    nic_details: list[Item] | None = None


def old_form(found: Item) -> Item:
    """The flat form of libvirt before 2.48; memory in KiB."""
    details = convert(found, _Details)
    shown: Item = {f"cpu{place}_time": each.get("time") for place, each in enumerate(details.cpu_details or ())}
    if details.memory_details is not None and details.memory_details.maximum is not None:
        shown["memory"] = details.memory_details.maximum * 1024
    for place, each in enumerate(details.disk_details or ()):
        name = f"vd{chr(ord('a') + place % 26)}"
        shown |= {f"{name}_{word}": each.get(key) for key, word in _DISK.items()}
        shown[f"{name}_errors"] = -1 if each.get("errors_count") is None else each["errors_count"]
    for place, each in enumerate(details.nic_details or ()):
        shown |= {f"vnet{place}_{word}": each.get(key) for key, word in _NIC.items()}
    return shown
