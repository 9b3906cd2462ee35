"""docs/scheduler.md: the tables of filters and weighers, from their modules. The text above is written by hand."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from kilonova.docs.markdown import code, table
from kilonova.scheduler import filters, weighers
from kilonova.scheduler.config import FILTERS, WEIGHTS

MARK = "<!-- What follows is written by `make docs` from src/kilonova/scheduler/filters and weighers. -->"


def page(root: Path) -> str:
    file = root / "docs" / "scheduler.md"
    words = file.read_text() if file.exists() else "# The scheduler\n\n"
    parts = [
        words.partition(MARK)[0] + MARK,
        "## Filters\n\nEnabled by default, in this order:",
        table(["Filter", "Description"], [_row(filters, name) for name in FILTERS]),
        "Available for `[scheduler] filters`:",
        table(["Filter", "Description"], [_row(filters, name) for name in _names(filters) if name not in FILTERS]),
        _forced(),
        "## Weighers",
        table(
            ["Weigher", "Description", "Default multiplier", "Aggregate metadata"],
            [
                [
                    *_row(weighers, name),
                    f"{multiplier:.10g}" if multiplier else "0: disabled",
                    code(f"{name}_weight_multiplier"),
                ]
                for name, multiplier in WEIGHTS.items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _forced() -> str:
    names = ", ".join(code(one.name) for one in filters.load(_names(filters)) if one.even_if_forced)
    return (
        f"Only these filters check a host that an administrator forces (`--availability-zone zone:host`): {names}."
        " `compute_up` then checks only that the host is up; it may be disabled."
    )


def _row(package: ModuleType, name: str) -> list[str]:
    module = importlib.import_module(f"{package.__name__}.{name}")
    return [code(name), (module.__doc__ or "").partition("\n")[0]]


def _names(package: ModuleType) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))
