"""Sort keys of lists of servers: what each sorts by, and who may use it."""

from __future__ import annotations

from typing import NamedTuple

from kilonova.compute.servers.schemas import ALL_FILTERS
from kilonova.compute.servers.task_states import task_states_of_steps
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.store.paging import SortKey

_COLUMNS = {
    **{
        name: name
        for name in (
            *("created_at", "updated_at", "launched_at", "terminated_at", "host", "hostname", "vm_state"),
            *("power_state", "project_id", "user_id", "key_name", "launch_index", "reservation_id", "locked"),
            *("config_drive", "access_ip_v4", "access_ip_v6", "root_device_name", "vcpus", "locked_by", "task_state"),
        )
    },
    "auto_disk_config": "disk_config",
    "availability_zone": "pinned_zone",
    "display_description": "description",
    "display_name": "name",
    "id": "id",
    "image_ref": "image_id",
    "instance_type_id": "flavor_id",
    "memory_mb": "ram",
    "node": "hypervisor_hostname",
    "uuid": "id",
}
# Accepted without effect: `progress` changes all the time, others are fields of Nova's database or of the image.
_IGNORED = frozenset(
    {
        *("progress", "architecture", "cell_name", "cleaned", "default_ephemeral_device", "default_swap_device"),
        *("deleted", "deleted_at", "disable_terminate", "ephemeral_gb", "ephemeral_key_uuid", "kernel_id", "key_data"),
        *("launched_on", "os_type", "ramdisk_id", "root_gb", "shutdown_terminate", "user_data", "vm_mode"),
    }
)
_NULLABLE = frozenset(
    {
        *("launched_at", "terminated_at", "host", "key_name", "access_ip_v4", "access_ip_v6", "root_device_name"),
        *("description", "image_id", "hypervisor_hostname", "pinned_zone", "locked_by", "task_state"),
    }
)
_HOST_KEYS = frozenset({"host", "node"})


class SortOrder(NamedTuple):
    """`table` is what FROM names: servers, with the task state if the order needs it."""

    keys: list[SortKey]
    table: str


def requested_order(ctx: Context) -> SortOrder:
    names = ctx.query.get("sort_key", [])
    directions = ctx.query.get("sort_dir", [])
    if len(directions) > max(len(names), 1):
        raise BadRequest("There are more sort_dir than sort_key in the query.")
    keys = []
    for place, name in enumerate(names or ["created_at"]):
        if name in _IGNORED:
            continue
        if name not in _COLUMNS:
            raise BadRequest(f"Sort key supplied is not valid: {name}")
        if name in _HOST_KEYS and not ctx.may(ALL_FILTERS):
            raise Forbidden(f"Policy doesn't allow sorting by {name}.")
        descending = (directions[place] if place < len(directions) else "desc") == "desc"
        column = _COLUMNS[name]
        keys.append(SortKey(column, descending, nullable=column in _NULLABLE))
    keys = keys or [SortKey("created_at", descending=True, nullable=False)]
    with_task_state = any(key.column == "task_state" for key in keys)
    return SortOrder([*keys, SortKey("id", keys[-1].descending)], _with_task_state() if with_task_state else "servers")


def _with_task_state() -> str:
    """Servers with their task state, which is that of the step of their oldest unfinished operation."""
    cases = " ".join(f"WHEN '{step}' THEN '{state}'" for step, state in task_states_of_steps().items())
    task_state = (
        f"SELECT CASE o.kind || '/' || o.step {cases} END FROM operations o WHERE o.server_id = servers.id"
        " AND o.finished_at IS NULL AND NOT o.cancel_requested ORDER BY o.seq LIMIT 1"
    )
    return f"(SELECT servers.*, ({task_state}) AS task_state FROM servers) servers"
