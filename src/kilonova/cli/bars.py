"""What several commands draw: tables that stay whole in a pipe, and bars of free capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
# What nobody could copy if it were broken in two.
_WHOLE = ("HOST", "ID", "FILTER", "REJECTED BY")
_UNITS = {"MEMORY_MB": ("MB", "memory"), "DISK_GB": ("GB", "disk")}


def console() -> Console:
    from rich.console import Console

    found = Console(markup=False, highlight=False)
    if not found.is_terminal:
        found.width = 200  # a pipe has no width, and names must stay whole for whoever reads it
    return found


def table(*headings: str, numbers: Iterable[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    right = set(numbers)
    for heading in headings:
        whole = heading in _WHOLE
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold", no_wrap=whole)
    return made


def fitting(console: Console, make: Callable[[int], Table]) -> Table:
    """The table with bars of the usual width, or if that is too wide for the terminal, without any."""
    made = make(WIDTH)
    return made if console.measure(made).maximum <= console.width else make(0)


def bar(part: float, whole: float, width: int = WIDTH) -> str:
    """`████▌     `: the part of the whole, to an eighth of a character."""
    share = min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


def free(amounts: Mapping[str, Mapping[str, int]], needed: Mapping[str, int], name: str, width: int) -> Text:
    """A bar of what is free of a class, and the numbers; red where it is less than what is needed."""
    from rich.text import Text

    if name not in amounts:
        return Text("none", "red" if needed.get(name) else "dim")
    left, limit = amounts[name]["free"], amounts[name]["of"]
    style = "red" if left < needed.get(name, 0) else "green" if left * 2 > limit else "yellow"
    numbers = f"{left} of {limit}"
    return Text.assemble((bar(left, limit, width), style), f" {numbers}") if width else Text(numbers, style)


def needed(asked: Mapping[str, Any]) -> dict[str, int]:
    """All that is asked for of each class, in whatever group."""
    total: dict[str, int] = dict(asked.get("resources", {}))
    for resources in asked.get("groups", {}).values():
        for name, amount in resources.items():
            total[name] = total.get(name, 0) + amount
    return total


def amount(name: str, number: int) -> str:
    """`512 MB memory`, `2 VCPU`."""
    unit, word = _UNITS.get(name, ("", name))
    return " ".join(filter(None, (str(number), unit, word)))


def asked_for(asked: Mapping[str, Any]) -> str:
    """`1 VCPU, 512 MB memory; zone az1; traits HW_CPU_X86_AVX2`."""
    parts = [", ".join(amount(name, number) for name, number in asked.get("resources", {}).items())]
    for suffix, resources in asked.get("groups", {}).items():
        parts.append(f"group {suffix}: " + ", ".join(amount(name, number) for name, number in resources.items()))
    for key, word in (("zone", "zone"), ("host", "host"), ("hypervisor_hostname", "hypervisor"), ("group", "group of")):
        if key in asked:
            parts.append(f"{word} {asked[key]}")
    for key, word in (("required_traits", "traits"), ("forbidden_traits", "without traits")):
        if key in asked:
            parts.append(f"{word} {', '.join(asked[key])}")
    return "; ".join(filter(None, parts))
