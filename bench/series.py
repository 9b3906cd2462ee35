"""Series of measurements over the number of hosts, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table


class Series:
    """One measurement at several numbers of hosts."""

    def __init__(self, name: str, unit: str) -> None:
        self.name = name
        self.unit = unit
        self.points: dict[int, float] = {}

    @property
    def ratio(self) -> float:
        """The value at the most hosts, divided by the value at the fewest."""
        return self.points[max(self.points)] / self.points[min(self.points)]


def table(all_series: Sequence[Series]) -> Table:
    numbers = sorted({number for series in all_series for number in series.points})
    shown = Table("By number of hosts", *(f"{number:,}" for number in numbers), "Growth", title_justify="left")
    for column in shown.columns[1:]:
        column.justify = "right"
    for series in all_series:
        cells = (_format(series.points.get(number)) for number in numbers)
        shown.add_row(f"{series.name}, {series.unit}", *cells, f"{series.ratio:.2g}x")
    return shown


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(all_series: Sequence[Series], path: Path) -> None:
    """Plot every series with logarithmic axes, so that a power law is a straight line."""
    import matplotlib

    matplotlib.use("svg")
    # Makes the file reproducible.
    matplotlib.rcParams.update({"svg.hashsalt": "kilonova", "svg.fonttype": "none"})
    from matplotlib import pyplot

    columns = 2
    rows = -(-len(all_series) // columns)
    figure, plots = pyplot.subplots(rows, columns, figsize=(9, 2.6 * rows), squeeze=False)
    for plot, series in zip(plots.flat, all_series, strict=False):
        hosts = sorted(series.points)
        values = [series.points[number] for number in hosts]
        plot.loglog(hosts, values, marker="o")
        plot.set_title(f"{series.name}, {series.unit}", fontsize=9)
        plot.set_xlabel("hosts", fontsize=8)
        plot.tick_params(labelsize=8)
        plot.set_ylim(min(values) / 5, max(values) * 5)
        plot.grid(True, which="major", alpha=0.3)
    for plot in plots.flat[len(all_series) :]:
        plot.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
