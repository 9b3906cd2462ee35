"""The durable operations and their steps, from the tables that the engine runs."""

from __future__ import annotations

from pathlib import Path

from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown
from kilonova.operations.table import Entry, Operation, Wait, kinds


def page(root: Path) -> str:
    import kilonova.compute.operations  # noqa: F401 - registers them

    return markdown(
        "# Operations",
        "Every answer 202 stands for one of these. A step that fails is tried again where that can help; else what was "
        "done is undone in reverse order. The deadline, in seconds, is counted from the step's first start.",
        *(_operation(kind) for kind in sorted(kinds(), key=lambda kind: kind.kind)),
    )


def _operation(kind: type[Operation]) -> str:
    module = __import__(kind.__module__, fromlist=["__doc__"])
    words = (module.__doc__ or "").strip().split("\n")[0]
    rows = [_step(kind, entry) for entry in kind.table().steps]
    action = f"Action {code(kind.action)} in `os-instance-actions`." if kind.action else ""
    steps = table(["Step", "Task state", "Deadline", "Undo"], rows)
    return f"## {kind.kind}\n\n{words} {action}\n\n{steps}"


def _step(kind: type[Operation], entry: Entry) -> list[str]:
    if isinstance(entry, Wait):
        undo = "nothing to undo: it only waits"
    else:
        undo = code(entry.undo.__name__.replace("_", " ")) if entry.undo else f"none: {entry.why}"
    task = entry.task_state or kind.task_state or ""
    return [entry.name, code(task), f"{entry.deadline:g}", undo]
