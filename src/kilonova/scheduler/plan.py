"""A plan: filters in their order, then weights. Pure, so that trying and doing cannot differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from kilonova.scheduler.arranging import Allocations, Arranger
from kilonova.scheduler.candidates import Candidate, Plan
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.explain import (
    Cause,
    Diagnosis,
    FilterResult,
    Free,
    Rejection,
    Weight,
    asked_of,
    classes_of,
    free_of,
)
from kilonova.scheduler.filters import Filter, Reason, requested_destination, tenant_isolation
from kilonova.scheduler.filters import load as load_filters
from kilonova.scheduler.loads import wanted
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts, Mask, Versions
from kilonova.scheduler.stock import Integers, Numbers
from kilonova.scheduler.weighers import load as load_weighers

ARRANGEMENT = "arrangement"
"""Stands among the filters of a diagnosis for the search that follows them."""
_FEW = 20
# So many hosts are asked one by one why they cannot; on the others of a large cloud no time is spent.
_EXPLAINED = 1000
# Seconds after which a search lets others have their turn, if its caller does.
_TURN = 0.005
# So much noise at least that a few hosts, too, have their turns alike.
_NOISE = 10_000

T = TypeVar("T")
Pieces = Generator[None, None, T]
"""Work in pieces, with its result at the end."""


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
        self.reads = wanted(*(one.reads for one in self._filters), *(one.reads for one in self._weighers))
        self._alternates = config.alternates
        self._shown = config.shown_hosts
        self._jitter = config.jitter
        self._chance = np.random.default_rng()
        self._noise: Numbers = np.zeros(0)

    def plan(self, request: Request, hosts: Hosts) -> Plan:
        """All at once."""
        return _at_once(self.pieces(request, hosts))

    def pieces(self, request: Request, hosts: Hosts) -> Pieces[Plan]:
        """A plan in pieces of some milliseconds. Between them others may run, and hosts come, change and go.

        Only the search of many hosts that are more than one provider is long enough to be cut.
        """
        mask, results, rejected = self._filter(request, hosts)
        rows = np.flatnonzero(mask)
        if len(rows):
            totals, parts = self._weigh(request, hosts, rows)
            arranger = Arranger(request, hosts)
            found, failed = yield from _arrange(arranger, hosts, rows, totals, self._alternates)
            if failed or not arranger.needless:
                unarranged = yield from self._unarranged(arranger, hosts, failed, explain_all=not found)
                results += (_result(ARRANGEMENT, request, len(rows), unarranged),)
                rejected += unarranged
            if found:
                return _plan(request, hosts, results, found, rows, totals, parts)
        shown = self._show(request, hosts, rejected)
        return Plan((), Diagnosis(len(hosts), results, rejections=shown, asked=asked_of(request)))

    def unarranged(self, request: Request, hosts: Hosts, failed: list[int], before: int) -> FilterResult:
        """What became of rows that pass all filters, `before` in number, and cannot be arranged on."""
        parts = _at_once(self._unarranged(Arranger(request, hosts), hosts, failed, explain_all=True))
        return _result(ARRANGEMENT, request, before, parts)

    @property
    def limits(self) -> list[tuple[str, Callable[[Hosts], Numbers]]]:
        """The filters that limit the number of servers on a host, and how many more they let it have."""
        return [(check.name, check.room) for check in self._filters if check.room is not None]

    def passing(self, request: Request, hosts: Hosts) -> tuple[Integers, tuple[FilterResult, ...]]:
        """The rows that pass all filters, and what became of the others."""
        mask, results, _ = self._filter(request, hosts)
        return np.flatnonzero(mask), results

    def objections(self, request: Request, hosts: Hosts) -> list[str]:
        """What speaks against another image for a server that stays on the named host, where it has its share."""
        there = requested_destination.passes(request, hosts)
        found: list[_Rejected] = []
        for check in self._filters:
            if check.on_rebuild:
                found += _split(check, request, hosts, there & ~check.passes(request, hosts))
        return [part.reason.text(request) for part in found]

    def _filter(self, request: Request, hosts: Hosts) -> tuple[Mask, tuple[FilterResult, ...], list[_Rejected]]:
        """Who is left; what became of the hosts at each filter that had something to check; and who was rejected."""
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
        """Everyone's total, and what the totals are made of."""
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
        """Chance decides between equals. A random stretch of a fixed noise is as good as new noise, and free."""
        if len(self._noise) < 2 * number:
            self._noise = self._chance.random(max(4 * number, _NOISE)) * self._jitter
        start = int(self._chance.integers(len(self._noise) - number))
        return self._noise[start : start + number]

    def _unarranged(
        self, arranger: Arranger, hosts: Hosts, failed: list[int], *, explain_all: bool
    ) -> Pieces[list[_Rejected]]:
        """The hosts that have enough of everything, but not together, by what is missing."""
        missing: dict[int, str] = {}
        turn = _Turn()
        for row in failed[: _EXPLAINED if explain_all else self._shown]:
            missing[row] = arranger.missing(row)
            if turn.is_over():
                yield
        rows: dict[str, list[int]] = {}
        for row in failed:
            # Figures differ from host to host; what stands before them is the reason.
            text = f"cannot arrange: {missing[row].partition(' (')[0]}" if row in missing else "cannot arrange it"
            rows.setdefault(text, []).append(row)
        need = arranger.words()
        parts = []
        for text, some in rows.items():
            reason = Reason(
                _plain(text),
                need=lambda _: need,
                have=lambda _, host: missing.get(host.row, ""),
            )
            mask = np.zeros(hosts.size, np.bool_)
            mask[some] = True
            parts.append(_Rejected(ARRANGEMENT, reason, mask))
        return parts

    def _show(self, request: Request, hosts: Hosts, rejected: list[_Rejected]) -> tuple[Rejection, ...]:
        """Some hosts for every reason, so that a frequent one does not hide a rare one; the project's own first."""
        classes, own = classes_of(request), tenant_isolation.own(request, hosts)
        shown: list[Rejection] = []
        for number, part in enumerate(sorted(rejected, key=lambda part: np.count_nonzero(part.rows))):
            share = (self._shown - len(shown)) // (len(rejected) - number)
            rows = np.flatnonzero(part.rows)
            if own is not None and len(rows) > share:
                rows = rows[np.argsort(~own[rows], kind="stable")]
            rows = rows[:share]
            for row, free in zip(rows.tolist(), free_of(hosts, rows, classes), strict=True):
                shown.append(_rejection(request, hosts, part, row, free))
        return tuple(shown)


def _at_once(pieces: Pieces[T]) -> T:
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: T = end.value
            return result


class _Turn:
    """How long others have been waiting."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _TURN

    def is_over(self) -> bool:
        """Whether it is the others' turn; the next one begins when they had it."""
        now = time.monotonic()
        if now < self._until:
            return False
        self._until = now + _TURN
        return True


def _arrange(
    arranger: Arranger, hosts: Hosts, rows: Integers, totals: Numbers, number: int
) -> Pieces[tuple[list[tuple[int, Allocations]], list[int]]]:
    """The best hosts that really have it, as positions in `rows` with what to claim; and better rows that do not."""
    if arranger.needless:
        return [(n, arranger.whole(int(rows[n]))) for n in _highest(totals, number).tolist()], []
    found: list[tuple[int, Allocations]] = []
    failed: list[int] = []
    filtered: Versions | None = None  # as the filters saw them, once others had a turn
    turn = _Turn()
    for n in _in_order(totals, number):
        if turn.is_over():
            filtered = filtered or hosts.versions()
            yield
        row = int(rows[n])
        allocations = arranger.on(row) if filtered is None or hosts.is_still(row, filtered) else None
        if allocations is None:
            failed.append(row)
            continue
        found.append((n, allocations))
        if len(found) == number:
            break
    if filtered is not None:
        found = [(n, allocations) for n, allocations in found if hosts.is_still(int(rows[n]), filtered)]
    return found, failed


def _in_order(totals: Numbers, number: int) -> Iterator[int]:
    """Positions, highest first. Mostly the first `number` are enough, so the others are not sorted before."""
    best = _highest(totals, number).tolist()
    yield from best
    if len(best) < len(totals):
        seen = set(best)
        yield from (n for n in np.argsort(-totals).tolist() if n not in seen)


def _plan(
    request: Request,
    hosts: Hosts,
    results: tuple[FilterResult, ...],
    found: list[tuple[int, Allocations]],
    rows: Integers,
    totals: Numbers,
    parts: dict[str, Numbers],
) -> Plan:
    best = rows[[n for n, _ in found]]
    candidates = tuple(
        Candidate(hosts.uuids[row], hosts.names[row], hosts.hypervisor_hostnames[row], allocations, hosts.facts(row))
        for row, (_, allocations) in zip(best.tolist(), found, strict=True)
    )
    weights = tuple(
        Weight(
            candidate.host,
            candidate.hypervisor_hostname,
            float(totals[n]),
            {name: float(part[n]) for name, part in parts.items()},
            free,
        )
        for candidate, (n, _), free in zip(candidates, found, free_of(hosts, best, classes_of(request)), strict=True)
    )
    return Plan(candidates, Diagnosis(len(hosts), results, weights=weights, asked=asked_of(request)))


def _result(name: str, request: Request, before: int, parts: list[_Rejected]) -> FilterResult:
    causes = tuple(Cause(part.reason.text(request), int(np.count_nonzero(part.rows))) for part in parts)
    rejected = sum(cause.hosts for cause in causes)
    return FilterResult(name, rejected, before - rejected, causes)


def _plain(text: str) -> str:
    """Text that is no pattern."""
    return text.replace("{", "{{").replace("}", "}}")


def _highest(totals: Numbers, number: int) -> Integers:
    """Where the highest are, highest first. A few are found faster one by one than by sorting."""
    if number > _FEW or number >= len(totals):
        return np.argsort(-totals)[:number]
    left = totals.copy()
    best = np.empty(number, np.int64)
    for n in range(number):
        best[n] = left.argmax()
        left[best[n]] = -np.inf
    return best


def _split(check: Filter, request: Request, hosts: Hosts, rejected: Mask) -> list[_Rejected]:
    """A host counts for the first reason that applies to it."""
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
