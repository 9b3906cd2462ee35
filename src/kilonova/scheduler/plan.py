"""Plans: filters in their order, then weighers, then allocations. Without side effects, so dry runs use it too."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from kilonova.placement.candidates.model import AllocationRequest
from kilonova.scheduler.allocations import Allocator
from kilonova.scheduler.arrays import Integers, Numbers
from kilonova.scheduler.candidates import Candidate, Plan
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.explain import (
    Cause,
    Diagnosis,
    FilterResult,
    Free,
    Rejection,
    Weight,
    describe_request,
    free_amounts,
    resource_classes,
)
from kilonova.scheduler.filters import Filter, Reason, requested_destination, tenant_isolation
from kilonova.scheduler.filters import load as load_filters
from kilonova.scheduler.host_load import required_counts
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts, Mask, RowVersions
from kilonova.scheduler.weighers import load as load_weighers

ARRANGEMENT = "arrangement"
"""The name under which a diagnosis lists the search for allocations, which follows the filters."""
_SORT_ABOVE = 20
# A missing allocation is explained for at most this many hosts, to limit the time in large clouds.
_MAX_EXPLAINED = 1000
_SLICE_SECONDS = 0.005
# Enough noise that a few equal hosts are chosen equally often.
_MIN_NOISE = 10_000

T = TypeVar("T")
Sliced = Generator[None, None, T]
"""A computation in time slices: yields between them and returns the result."""


class _Rejected(NamedTuple):
    """The rows that one reason of one filter rejected."""

    filter: str
    reason: Reason
    rows: Mask


class Planner:
    """The configured filters and weighers."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._filters = load_filters(config.filters)
        self._weighers = load_weighers(config.weights)
        self.counts = required_counts(*(one.reads for one in self._filters), *(one.reads for one in self._weighers))
        self._alternates = config.alternates
        self._shown = config.max_listed_hosts
        self._jitter = config.jitter
        self._random = np.random.default_rng()
        self._noise: Numbers = np.zeros(0)

    def plan(self, request: Request, hosts: Hosts) -> Plan:
        return _run_to_end(self.plan_in_slices(request, hosts))

    def plan_in_slices(self, request: Request, hosts: Hosts) -> Sliced[Plan]:
        """Plan in slices of some milliseconds. Between them the caller may run other tasks, and hosts may change.

        Only the search over many hosts with several providers takes more than one slice.
        """
        mask, results, rejected = self._filter(request, hosts)
        rows = np.flatnonzero(mask)
        if len(rows):
            totals, parts = self._weigh(request, hosts, rows)
            allocator = Allocator(request, hosts)
            found, failed = yield from _allocate(allocator, hosts, rows, totals, self._alternates)
            if failed or not allocator.columns_suffice:
                unallocated = yield from self._explain_unallocated(allocator, hosts, failed, explain_all=not found)
                results += (_result(ARRANGEMENT, request, len(rows), unallocated),)
                rejected += unallocated
            if found:
                return _plan(request, hosts, results, found, rows, totals, parts)
        shown = self._shown_rejections(request, hosts, rejected)
        return Plan((), Diagnosis(len(hosts), results, rejections=shown, asked=describe_request(request)))

    def unallocated(self, request: Request, hosts: Hosts, failed: list[int], before: int) -> FilterResult:
        """The result for rows that pass all filters but cannot allocate the request; `before` rows pass in total."""
        parts = _run_to_end(self._explain_unallocated(Allocator(request, hosts), hosts, failed, explain_all=True))
        return _result(ARRANGEMENT, request, before, parts)

    @property
    def limits(self) -> list[tuple[str, Callable[[Hosts], Numbers]]]:
        """Filters that limit the number of servers on a host, each with its `room`."""
        return [(check.name, check.room) for check in self._filters if check.room is not None]

    def passing_rows(self, request: Request, hosts: Hosts) -> tuple[Integers, tuple[FilterResult, ...]]:
        """The rows that pass all filters, and the results of the filters."""
        mask, results, _ = self._filter(request, hosts)
        return np.flatnonzero(mask), results

    def rebuild_objections(self, request: Request, hosts: Hosts) -> list[str]:
        """Reasons against another image for a server that keeps its allocation on the named host."""
        named = requested_destination.passes(request, hosts)
        found: list[_Rejected] = []
        for check in self._filters:
            if check.on_rebuild:
                found += _split(check, request, hosts, named & ~check.passes(request, hosts))
        return [part.reason.text(request) for part in found]

    def _filter(self, request: Request, hosts: Hosts) -> tuple[Mask, tuple[FilterResult, ...], list[_Rejected]]:
        """The passing rows, the result of each filter that had something to check, and the rejected rows."""
        mask = hosts.everywhere
        left = len(hosts)
        results: list[FilterResult] = []
        rejected: list[_Rejected] = []
        for check in self._filters:
            if not left:
                break
            if request.forced and not check.even_if_forced:
                continue
            passed = check.passes(request, hosts)
            if passed is hosts.everywhere:
                continue
            survivors = mask & passed
            count = int(np.count_nonzero(survivors))
            parts = _split(check, request, hosts, mask & ~passed) if count < left else []
            rejected += parts
            results.append(_result(check.name, request, left, parts))
            mask, left = survivors, count
        return mask, tuple(results), rejected

    def _weigh(self, request: Request, hosts: Hosts, rows: Integers) -> tuple[Numbers, dict[str, Numbers]]:
        """The total weight of each row, and the part of each weigher."""
        totals = self._tie_break(len(rows))
        parts: dict[str, Numbers] = {}
        for weigher in self._weighers:
            values = weigher.weigh(request, hosts, rows)
            if values is None:
                continue
            low, high = values.min(), values.max()
            if high > low:
                values = (values - low) * (weigher.multipliers(hosts, rows) / (high - low))
                totals = totals + values
            else:
                values = np.zeros(len(rows))
            parts[weigher.name] = values
        return totals, parts

    def _tie_break(self, number: int) -> Numbers:
        """Random numbers that order equal hosts: a random section of fixed noise, which costs nothing to make."""
        if len(self._noise) < 2 * number:
            self._noise = self._random.random(max(4 * number, _MIN_NOISE)) * self._jitter
        start = int(self._random.integers(len(self._noise) - number))
        return self._noise[start : start + number]

    def _explain_unallocated(
        self, allocator: Allocator, hosts: Hosts, failed: list[int], *, explain_all: bool
    ) -> Sliced[list[_Rejected]]:
        """Group the hosts that have enough of each class, but not in the right providers, by the reason."""
        missing: dict[int, str] = {}
        time_slice = _TimeSlice()
        for row in failed[: _MAX_EXPLAINED if explain_all else self._shown]:
            missing[row] = allocator.explain(row)
            if time_slice.is_over():
                yield
        rows: dict[str, list[int]] = {}
        for row in failed:
            # The text before the parenthesis is the reason; the figures in it differ between hosts.
            why = f": {missing[row].partition(' (')[0]}" if row in missing else " the request"
            rows.setdefault("cannot allocate" + why, []).append(row)
        need = allocator.describe_request()
        parts = []
        for text, rows_of_text in rows.items():
            reason = Reason(
                text.replace("{", "{{").replace("}", "}}"),
                need=lambda _: need,
                have=lambda _, host: missing.get(host.row, ""),
            )
            mask = np.zeros(hosts.size, np.bool_)
            mask[rows_of_text] = True
            parts.append(_Rejected(ARRANGEMENT, reason, mask))
        return parts

    def _shown_rejections(self, request: Request, hosts: Hosts, rejected: list[_Rejected]) -> tuple[Rejection, ...]:
        """Some hosts for every reason, so that frequent reasons do not hide rare ones; the project's own first."""
        classes, own = resource_classes(request), tenant_isolation.reserved_hosts(request, hosts)
        shown: list[Rejection] = []
        for number, part in enumerate(sorted(rejected, key=lambda part: np.count_nonzero(part.rows))):
            quota = (self._shown - len(shown)) // (len(rejected) - number)
            rows = np.flatnonzero(part.rows)
            if own is not None and len(rows) > quota:
                rows = rows[np.argsort(~own[rows], kind="stable")]
            rows = rows[:quota]
            for row, free in zip(rows.tolist(), free_amounts(hosts, rows, classes), strict=True):
                shown.append(_rejection(request, hosts, part, row, free))
        return tuple(shown)


def _run_to_end(slices: Sliced[T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result


class _TimeSlice:
    """Measures the time since the last pause."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _SLICE_SECONDS

    def is_over(self) -> bool:
        """Whether it is time for a pause; if so, the next slice begins."""
        now = time.monotonic()
        if now < self._until:
            return False
        self._until = now + _SLICE_SECONDS
        return True


def _allocate(
    allocator: Allocator, hosts: Hosts, rows: Integers, totals: Numbers, number: int
) -> Sliced[tuple[list[tuple[int, AllocationRequest]], list[int]]]:
    """The best hosts, as positions in `rows` with their allocations; and the better rows that cannot allocate."""
    if allocator.columns_suffice:
        return [(n, allocator.allocate_from_root(int(rows[n]))) for n in _highest(totals, number).tolist()], []
    found: list[tuple[int, AllocationRequest]] = []
    failed: list[int] = []
    filtered: RowVersions | None = None  # as the filters saw them; set at the first pause
    time_slice = _TimeSlice()
    for n in _in_order(totals, number):
        if time_slice.is_over():
            filtered = filtered or hosts.row_versions()
            yield
        row = int(rows[n])
        allocated = allocator.allocate(row) if filtered is None or hosts.is_unchanged(row, filtered) else None
        if allocated is None:
            failed.append(row)
            continue
        found.append((n, allocated))
        if len(found) == number:
            break
    if filtered is not None:
        found = [(n, allocated) for n, allocated in found if hosts.is_unchanged(int(rows[n]), filtered)]
    return found, failed


def _in_order(totals: Numbers, number: int) -> Iterator[int]:
    """Positions, highest first. Usually the first `number` suffice, so the rest is sorted only when needed."""
    best = _highest(totals, number).tolist()
    yield from best
    if len(best) < len(totals):
        seen = set(best)
        yield from (n for n in np.argsort(-totals).tolist() if n not in seen)


def _plan(
    request: Request,
    hosts: Hosts,
    results: tuple[FilterResult, ...],
    found: list[tuple[int, AllocationRequest]],
    rows: Integers,
    totals: Numbers,
    parts: dict[str, Numbers],
) -> Plan:
    best = rows[[n for n, _ in found]]
    candidates = tuple(
        Candidate(
            hosts.uuids[row],
            hosts.names[row],
            hosts.hypervisor_hostnames[row],
            allocated.allocations,
            hosts.facts_version(row),
            {suffix: providers[0] for suffix, providers in allocated.mappings.items() if suffix},
        )
        for row, (_, allocated) in zip(best.tolist(), found, strict=True)
    )
    free_per_row = free_amounts(hosts, best, resource_classes(request))
    weights = tuple(
        Weight(
            candidate.host,
            candidate.hypervisor_hostname,
            float(totals[n]),
            {name: float(part[n]) for name, part in parts.items()},
            free,
        )
        for candidate, (n, _), free in zip(candidates, found, free_per_row, strict=True)
    )
    return Plan(candidates, Diagnosis(len(hosts), results, weights=weights, asked=describe_request(request)))


def _result(name: str, request: Request, before: int, parts: list[_Rejected]) -> FilterResult:
    causes = tuple(Cause(part.reason.text(request), int(np.count_nonzero(part.rows))) for part in parts)
    rejected = sum(cause.hosts for cause in causes)
    return FilterResult(name, rejected, before - rejected, causes)


def _highest(totals: Numbers, number: int) -> Integers:
    """Positions of the highest totals. A few are found faster one by one than by sorting."""
    if number > _SORT_ABOVE or number >= len(totals):
        return np.argsort(-totals)[:number]
    left = totals.copy()
    best = np.empty(number, np.int64)
    for n in range(number):
        best[n] = left.argmax()
        left[best[n]] = -np.inf
    return best


def _split(check: Filter, request: Request, hosts: Hosts, rejected: Mask) -> list[_Rejected]:
    """Divide rejected rows by the first reason that applies to each."""
    reasons = check.reason.parts(request)
    parts: list[_Rejected] = []
    for reason in reasons:
        rows = rejected
        if reason.applies is not None and reason is not reasons[-1]:
            rows = rejected & reason.applies(request, hosts)
            rejected = rejected & ~rows
        if rows.any():
            parts.append(_Rejected(check.name, reason, rows))
    return parts


def _rejection(request: Request, hosts: Hosts, part: _Rejected, row: int, free: Free) -> Rejection:
    host = hosts.at(row)
    return Rejection(
        host=host.name,
        hypervisor_hostname=host.hypervisor_hostname,
        hypervisor_uuid=host.uuid,
        filter=part.filter,
        text=part.reason.text(request),
        need=part.reason.need(request),
        have=part.reason.have(request, host),
        free=free,
    )
