"""Tables and bars of free capacity for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

BAR_WIDTH = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
# Columns that are never wrapped, so that their cells can be copied.
_UNWRAPPED = ("HOST", "ID", "FILTER", "REJECTED BY")
_UNITS = {"MEMORY_MB": ("MB", "memory"), "DISK_GB": ("GB", "disk")}


def make_console() -> Console:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe has no width, and names must not be wrapped
    return console


def make_table(*headings: str, numbers: Iterable[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    right = set(numbers)
    for heading in headings:
        no_wrap = heading in _UNWRAPPED
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold", no_wrap=no_wrap)
    return table


def fit_to_console(console: Console, make: Callable[[int], Table]) -> Table:
    """The table with bars, or without them if it is too wide for the terminal."""
    table = make(BAR_WIDTH)
    return table if console.measure(table).maximum <= console.width else make(0)


def draw_bar(part: float, whole: float, width: int = BAR_WIDTH) -> str:
    """`████▌·····`: a part of a whole, to an eighth of a character."""
    fraction = min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
    eighths = round(fraction * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


def free_cell(amounts: Mapping[str, Mapping[str, int]], needed: Mapping[str, int], name: str, width: int) -> Text:
    """A bar and the numbers of the free amount of a class; red if it is less than needed."""
    from rich.text import Text

    if name not in amounts:
        return Text("none", "red" if needed.get(name) else "dim")
    left, limit = amounts[name]["free"], amounts[name]["of"]
    style = "red" if left < needed.get(name, 0) else "green" if left * 2 > limit else "yellow"
    numbers = f"{left} of {limit}"
    return Text.assemble((draw_bar(left, limit, width), style), f" {numbers}") if width else Text(numbers, style)


def total_needed(requested: Mapping[str, Any]) -> dict[str, int]:
    """The requested amounts of all groups, by class."""
    total: dict[str, int] = dict(requested.get("resources", {}))
    for resources in requested.get("groups", {}).values():
        for name, amount in resources.items():
            total[name] = total.get(name, 0) + amount
    return total


def format_amount(name: str, number: int) -> str:
    """`512 MB memory`, `2 VCPU`."""
    unit, word = _UNITS.get(name, ("", name))
    return " ".join(filter(None, (str(number), unit, word)))


def describe_request(requested: Mapping[str, Any]) -> str:
    """`1 VCPU, 512 MB memory; zone az1; traits HW_CPU_X86_AVX2`."""
    parts = [", ".join(format_amount(name, number) for name, number in requested.get("resources", {}).items())]
    for suffix, resources in requested.get("groups", {}).items():
        parts.append(f"group {suffix}: " + ", ".join(format_amount(name, number) for name, number in resources.items()))
    for key, word in (("zone", "zone"), ("host", "host"), ("hypervisor_hostname", "hypervisor"), ("group", "group of")):
        if key in requested:
            parts.append(f"{word} {requested[key]}")
    for key, word in (("required_traits", "traits"), ("forbidden_traits", "without traits")):
        if key in requested:
            parts.append(f"{word} {', '.join(requested[key])}")
    return "; ".join(filter(None, parts))
