"""What depends on the number of hosts, and how: decisions, claims, listings of candidates, and whole boots."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.process import Cloud

from bench import candidates, decisions
from bench.driving import UNLIMITED, load
from bench.series import Series

AT_ONCE = 16
BOOTS = 200
CLAIMS = 2000


def measure() -> list[Series]:
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        return [
            _decisions((1_000, 10_000, 100_000)),
            _boots(Path(scratch), (10, 100, 1_000, 10_000)),
            *_listings(Path(scratch), (100, 1_000, 10_000)),
            *_claims(Path(scratch), (10, 100, 1_000, 10_000)),
        ]


def _decisions(numbers: tuple[int, ...]) -> Series:
    series = Series("one decision", "ms")
    for number in numbers:
        hosts, _ = decisions.filled(decisions.plain, number)
        series.points[number] = decisions.decide(decisions.BOOT, hosts, max(50, 300_000 // number)).median
    return series


def _boots(scratch: Path, numbers: tuple[int, ...]) -> Series:
    """Real processes side by side, taking turns, so that a slow moment of the machine is not one of their sizes."""
    series = Series(f"boots, {AT_ONCE} at once", "a second")
    taken: dict[int, list[float]] = {number: [] for number in numbers}
    with ExitStack() as stack:
        clouds = {
            number: stack.enter_context(Cloud(scratch / f"hosts-{number}", "--hosts", str(number), environ=UNLIMITED))
            for number in numbers
        }
        for cloud in clouds.values():
            load(cloud, "boots", count=BOOTS, at_once=AT_ONCE)  # the first ones pay for what is loaded late
        for _ in range(5):
            for number, cloud in clouds.items():
                taken[number].append(load(cloud, "boots", count=BOOTS, at_once=AT_ONCE)["seconds"])
    series.points = {number: BOOTS / statistics.median(seconds) for number, seconds in taken.items()}
    return series


def _listings(scratch: Path, numbers: tuple[int, ...]) -> list[Series]:
    found = asyncio.run(candidates.measure(f"sqlite:///{scratch / 'candidates.db'}", numbers))
    few, many = Series("candidates, limit 10", "ms"), Series("candidates, limit 1000", "ms")
    for row in found:
        for series, limit in ((few, "limit=10"), (many, "limit=1000")):
            if row.query == f"{candidates.ASKED}&{limit}":
                series.points[row.providers] = row.milliseconds
    return [few, many]


def _claims(scratch: Path, numbers: tuple[int, ...]) -> Iterator[Series]:
    for database in (_sqlite, _postgresql):
        series = Series(f"claims, {AT_ONCE} at once, {database.__name__.strip('_')}", "a second")
        for number in numbers:
            with database(scratch / f"claims-{number}.db") as url:
                rate = asyncio.run(decisions.claims(url, count=CLAIMS, at_once=AT_ONCE, providers=number))
                series.points[number] = rate
        yield series


@contextmanager
def _sqlite(path: Path) -> Iterator[str]:
    yield f"sqlite:///{path}"


@contextmanager
def _postgresql(path: Path) -> Iterator[str]:
    with decisions.postgresql() as url:
        yield url
