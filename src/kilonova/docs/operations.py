"""docs/architecture/operations.md: the operations and their steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown
from kilonova.operations.definition import AnyEntry, Operation, Wait, all_kinds

_YEAR = 365 * 24 * 3600


def page(root: Path) -> str:
    import kilonova.compute.operations
    import kilonova.share.operations
    import kilonova.volume.operations  # noqa: F401 - all register them

    return markdown(
        "# Operations",
        "Every response 202 starts one of these operations. A failed step is retried if the error is temporary. "
        "Otherwise the completed steps are undone in reverse order. The deadline, in seconds, counts from the step's "
        "first start.",
        *(_operation(kind) for kind in sorted(all_kinds(), key=lambda kind: kind.kind)),
    )


def _operation(kind: type[Operation]) -> str:
    summary = _summary(kind)
    rows = [_step(kind, entry) for entry in kind.table().steps]
    action = f"Action {code(kind.action)} in `os-instance-actions`." if kind.action else ""
    steps = table(["Step", "Task state", "Deadline", "Undo"], rows)
    return f"## {kind.kind}\n\n{summary} {action}".rstrip() + f"\n\n{steps}"


def _summary(kind: type[Operation]) -> str:
    """The first line of the module's docstring, or of the class's in a module with several operations."""
    alone = sum(other.__module__ == kind.__module__ for other in all_kinds()) == 1
    own = "" if alone else kind.__dict__.get("__doc__") or ""
    text: str = own or __import__(kind.__module__, fromlist=["__doc__"]).__doc__ or ""
    return text.strip().split("\n")[0]


def _step(kind: type[Operation], entry: AnyEntry) -> list[str]:
    if isinstance(entry, Wait):
        undo = "none: it only waits"
    else:
        undo = code(entry.undo.__name__.replace("_", " ")) if entry.undo else f"none: {entry.why}"
    task = entry.task_state or kind.task_state or ""
    return [entry.name, code(task), _seconds(entry.deadline), undo]


def _seconds(deadline: float | Callable[..., float]) -> str:
    if callable(deadline):
        return "as configured"
    return "none" if deadline > _YEAR else f"{deadline:.0f}"
