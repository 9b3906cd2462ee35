"""Measures how decisions, claims, allocation candidates and boots depend on the number of hosts."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.cloud_process import CloudProcess

from bench import candidates, decisions
from bench.load_runner import UNLIMITED, run_load
from bench.series import Series

CONCURRENCY = 16
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
        hosts, _ = decisions.make_snapshot(decisions.plain, number)
        series.points[number] = decisions.measure_decision(decisions.BOOT, hosts, max(50, 300_000 // number)).median
    return series


def _boots(scratch: Path, numbers: tuple[int, ...]) -> Series:
    """Clouds of all sizes run in parallel and are measured in turn, so that a slow phase of the machine affects all."""
    series = Series(f"boots, {CONCURRENCY} at once", "a second")
    taken: dict[int, list[float]] = {number: [] for number in numbers}
    with ExitStack() as stack:
        clouds = {
            number: stack.enter_context(
                CloudProcess(scratch / f"hosts-{number}", "--hosts", str(number), environ=UNLIMITED)
            )
            for number in numbers
        }
        for cloud in clouds.values():
            run_load(cloud, "boots", count=BOOTS, at_once=CONCURRENCY)  # warm up: the first boots load modules
        for _ in range(5):
            for number, cloud in clouds.items():
                taken[number].append(run_load(cloud, "boots", count=BOOTS, at_once=CONCURRENCY)["seconds"])
    series.points = {number: BOOTS / statistics.median(seconds) for number, seconds in taken.items()}
    return series


def _listings(scratch: Path, numbers: tuple[int, ...]) -> list[Series]:
    found = asyncio.run(candidates.measure(f"sqlite:///{scratch / 'candidates.db'}", numbers))
    few, many = Series("candidates, limit 10", "ms"), Series("candidates, limit 1000", "ms")
    for row in found:
        for series, limit in ((few, "limit=10"), (many, "limit=1000")):
            if row.query == f"{candidates.RESOURCES}&{limit}":
                series.points[row.providers] = row.milliseconds
    return [few, many]


def _claims(scratch: Path, numbers: tuple[int, ...]) -> Iterator[Series]:
    for database in (_sqlite, _postgresql):
        series = Series(f"claims, {CONCURRENCY} at once, {database.__name__.strip('_')}", "a second")
        for number in numbers:
            with database(scratch / f"claims-{number}.db") as url:
                rate = asyncio.run(decisions.measure_claims(url, count=CLAIMS, at_once=CONCURRENCY, providers=number))
                series.points[number] = rate
        yield series


@contextmanager
def _sqlite(path: Path) -> Iterator[str]:
    yield f"sqlite:///{path}"


@contextmanager
def _postgresql(path: Path) -> Iterator[str]:
    with decisions.postgresql() as url:
        yield url
