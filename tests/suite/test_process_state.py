"""State of a process belongs to its `Services`: modules have none, so that two clouds in one process share nothing."""

from __future__ import annotations

import ast
import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kilonova
from kilonova.compute import host_calls, power_state_sync
from kilonova.hosts.messages import GuestState, Report
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.databases import sqlite_template
from tests.support.full_cloud import FullCloud, full_cloud

SOURCE = Path(kilonova.__file__).parent
CONTAINERS = {
    *("dict", "list", "set", "deque", "defaultdict", "Counter", "OrderedDict", "WeakKeyDictionary"),
    *("WeakValueDictionary", "WeakSet", "ContextVar", "count", "Lock", "Event", "Semaphore"),
}
# Registries and caches whose content depends on the code alone, and state of the operating system's process.
ALLOWED = {
    "hosts/drivers/libvirt/connection.py": {"_event_loop_lock"},
    "hosts/drivers/libvirt/plug.py": {"_initialization_lock"},
    "hosts/drivers/libvirt/snapshots.py": {"_locks"},
    "http/access_rules.py": {"is_restricted"},
    "http/parameter_types.py": {"ANYTHING"},
    "http/views.py": {"ANYTHING"},
    "network/authorization.py": {"_ANY_PROJECT"},
    "operations/definition.py": {"_kinds"},
    "placement/host_providers.py": {"_valid_names"},
    "store/records.py": {"_decoders"},
    "telemetry/context.py": {"request_id", "global_request_id", "operation_id"},
}


def _mutable_names(path: Path) -> set[str]:
    """Names at the top level of the module that are bound to an empty container, a lock or a counter."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_mutable(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.add(ast.unparse(target))
    return found


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2].partition("[")[0] in CONTAINERS


def test_modules_have_no_state() -> None:
    found = {str(path.relative_to(SOURCE)): _mutable_names(path) for path in SOURCE.rglob("*.py")}
    assert {module: names for module, names in found.items() if names} == ALLOWED


def test_two_clouds_in_one_process_share_nothing(tmp_path: Path) -> None:
    """Both clouds have a host with the same name. One is unreachable and has reported an unknown guest."""

    async def scenario() -> None:
        urls = [f"sqlite://{shutil.copy(sqlite_template(), tmp_path / name)}" for name in ("one.db", "two.db")]
        async with full_cloud(urls[0], hosts=1) as one, full_cloud(urls[1], hosts=1) as two:
            (host,) = one.hosts.names
            assert [host] == list(two.hosts.names)
            guest = GuestState(id="unknown", name="unknown", power="running", vcpus=1, ram_mb=512, disk_gb=1)
            await power_state_sync.sync(one.services, Report(host=host, guests=[guest]))
            assert power_state_sync.count_unknown_guests(one.services) == {host: 1}
            assert power_state_sync.count_unknown_guests(two.services) == {}
            with rules(one) as sim:
                sim.add_failure(host, "*", "unreachable", None, None)
                assert await asyncio.gather(_responds(one, host), _responds(two, host)) == [False, True]
                shown = await two.boot_active()
            assert shown["OS-EXT-SRV-ATTR:host"] == host
            assert (await one.get("/servers", as_="admin")).json()["servers"] == []

    run(scenario())


async def _responds(cloud: FullCloud, host: str) -> bool:
    operation: Any = SimpleNamespace(services=cloud.services)
    return await host_calls.responds(operation, host)
