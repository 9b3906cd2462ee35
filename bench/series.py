"""Figures that depend on the number of hosts, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table


class Series:
    """One figure at several numbers of hosts."""

    def __init__(self, name: str, unit: str) -> None:
        self.name = name
        self.unit = unit
        self.points: dict[int, float] = {}

    @property
    def ratio(self) -> float:
        """The figure at the most hosts, over that at the fewest."""
        return self.points[max(self.points)] / self.points[min(self.points)]


def table(all_series: Sequence[Series]) -> Table:
    """Rows of series, columns of numbers of hosts."""
    numbers = sorted({number for series in all_series for number in series.points})
    shown = Table("By number of hosts", *(f"{number:,}" for number in numbers), "Growth", title_justify="left")
    for column in shown.columns[1:]:
        column.justify = "right"
    for series in all_series:
        cells = (_figure(series.points.get(number)) for number in numbers)
        shown.add_row(f"{series.name}, {series.unit}", *cells, f"{series.ratio:.2g}x")
    return shown


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(all_series: Sequence[Series], path: Path) -> None:
    """Every series in a field of its own, both axes logarithmic, so that a straight line is a power of the hosts."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "kilonova", "svg.fonttype": "none"})
    from matplotlib import pyplot

    columns = 2
    rows = -(-len(all_series) // columns)
    figure, fields = pyplot.subplots(rows, columns, figsize=(9, 2.6 * rows), squeeze=False)
    for field, series in zip(fields.flat, all_series, strict=False):
        hosts = sorted(series.points)
        values = [series.points[number] for number in hosts]
        field.loglog(hosts, values, marker="o")
        field.set_title(f"{series.name}, {series.unit}", fontsize=9)
        field.set_xlabel("hosts", fontsize=8)
        field.tick_params(labelsize=8)
        field.set_ylim(min(values) / 5, max(values) * 5)
        field.grid(True, which="major", alpha=0.3)
    for field in fields.flat[len(all_series) :]:
        field.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
