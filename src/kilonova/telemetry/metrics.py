"""Metrics, kept in plain dicts on the hot path; the Prometheus library formats them at a scrape."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        running = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows


class Metrics:
    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], Histogram] = defaultdict(Histogram)
        self.steps: defaultdict[tuple[str, str, str, str], Histogram] = defaultdict(Histogram)
        self.operations: defaultdict[tuple[str, str], int] = defaultdict(int)

    def request(self, route: str, method: str, code: int, seconds: float) -> None:
        self.requests[(route, method, code)].add(seconds)

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None:
        self.steps[(kind, step, phase, outcome)].add(seconds)

    def operation_finished(self, kind: str, state: str) -> None:
        self.operations[(kind, state)] += 1

    def exposition(self, gauges: Iterable[Gauge]) -> bytes:
        """Return the metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(_Collector(self, list(gauges))))


# (name, help, label names, [(label values, number)])
Gauge = tuple[str, str, list[str], list[tuple[list[str], float]]]


class _Collector:
    def __init__(self, metrics: Metrics, gauges: list[Gauge]) -> None:
        self.metrics = metrics
        self.gauges = gauges

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = HistogramMetricFamily(
            "kilonova_request_seconds",
            "Requests by route, method and code",
            labels=["route", "method", "code"],
        )
        for (route, method, code), histogram in self.metrics.requests.items():
            requests.add_metric([route, method, str(code)], histogram.cumulative(), histogram.total)
        yield requests
        steps = HistogramMetricFamily(
            "kilonova_step_seconds",
            "Steps of operations by kind, step, phase and outcome",
            labels=["kind", "step", "phase", "outcome"],
        )
        for labels, histogram in self.metrics.steps.items():
            steps.add_metric(list(labels), histogram.cumulative(), histogram.total)
        yield steps
        finished = CounterMetricFamily(
            "kilonova_operations_finished", "Operations finished by this process", labels=["kind", "state"]
        )
        for (kind, state), count in self.metrics.operations.items():
            finished.add_metric([kind, state], count)
        yield finished
        for name, description, label_names, rows in self.gauges:
            gauge = GaugeMetricFamily(name, description, labels=label_names)
            for values, number in rows:
                gauge.add_metric(values, number)
            yield gauge
