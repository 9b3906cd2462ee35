"""State of a process belongs to its `Services`: modules have none, so that two clouds in one process share nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import kilonova

SOURCE = Path(kilonova.__file__).parent
CONTAINERS = {
    *("dict", "list", "set", "deque", "defaultdict", "Counter", "OrderedDict", "WeakKeyDictionary"),
    *("WeakValueDictionary", "WeakSet", "ContextVar", "count", "Lock", "Event", "Semaphore"),
}
# Registries and caches whose content depends on the code alone, and state of the operating system's process.
ALLOWED = {
    "hosts/drivers/libvirt/connection.py": {"_event_loop_lock"},
    "hosts/drivers/libvirt/snapshots.py": {"_locks"},
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
