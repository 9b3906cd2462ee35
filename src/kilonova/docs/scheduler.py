"""The tables of filters and weighers, from their modules. The text above them is written by hand."""

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
        "## Filters\n\nThose that are usually on, in their order:",
        table(["Filter", "What it is for"], [_row(filters, name) for name in FILTERS]),
        "Those that `[scheduler] filters` may add:",
        table(["Filter", "What it is for"], [_row(filters, name) for name in _names(filters) if name not in FILTERS]),
        _forced(),
        "## Weighers",
        table(
            ["Weigher", "Which hosts weigh more", "Usual multiplier", "In an aggregate's metadata"],
            [
                [
                    *_row(weighers, name),
                    f"{multiplier:.10g}" if multiplier else "0: off",
                    code(f"{name}_weight_multiplier"),
                ]
                for name, multiplier in WEIGHTS.items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _forced() -> str:
    judging = ", ".join(code(one.name) for one in filters.load(_names(filters)) if one.even_if_forced)
    return (
        f"Only these judge a host that an administrator forces (`--availability-zone zone:host`): {judging}."
        " Of `compute_up` it need be up alone; that it is disabled is no matter."
    )


def _row(package: ModuleType, name: str) -> list[str]:
    module = importlib.import_module(f"{package.__name__}.{name}")
    return [code(name), (module.__doc__ or "").partition("\n")[0]]


def _names(package: ModuleType) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))
