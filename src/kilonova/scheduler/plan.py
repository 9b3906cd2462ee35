"""A plan: filters in their order, then weights. Pure, so that trying and doing cannot differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
from kilonova.scheduler.filters import Filter, Reason
from kilonova.scheduler.filters import load as load_filters
from kilonova.scheduler.loads import wanted
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts, Mask
from kilonova.scheduler.stock import Integers, Numbers
from kilonova.scheduler.weighers import load as load_weighers

_FEW = 20


class _Rejected(NamedTuple):
    """The rows that one reason of one filter rejected."""

    filter: Filter
    reason: Reason
    rows: Mask


class Planner:
    """The configured filters and weighers."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._filters = load_filters(config.filters)
        self._weighers = load_weighers(config.weights)
        self.reads = wanted(*(part.reads for part in (*self._filters, *self._weighers)))
        self._alternates = config.alternates
        self._shown = config.shown_hosts
        self._jitter = config.jitter
        self._chance = np.random.default_rng()
        self._noise: Numbers = np.zeros(0)

    def plan(self, request: Request, hosts: Hosts) -> Plan:
        mask, results, rejected = self._filter(request, hosts)
        rows = np.flatnonzero(mask)
        if not len(rows):
            shown = self._show(request, hosts, rejected)
            return Plan((), Diagnosis(len(hosts), results, rejections=shown, asked=asked_of(request)))
        best, totals, parts = self._weigh(request, hosts, rows)
        amounts = request.amounts
        candidates = tuple(
            Candidate(hosts.uuids[row], hosts.names[row], hosts.hypervisor_hostnames[row], {hosts.uuids[row]: amounts})
            for row in rows[best].tolist()
        )
        weights = tuple(
            Weight(
                candidate.host,
                candidate.hypervisor_hostname,
                float(totals[n]),
                {name: float(part[n]) for name, part in parts.items()},
                free,
            )
            for candidate, n, free in zip(
                candidates, best.tolist(), free_of(hosts, rows[best], classes_of(request)), strict=True
            )
        )
        return Plan(candidates, Diagnosis(len(hosts), results, weights=weights, asked=asked_of(request)))

    def _filter(self, request: Request, hosts: Hosts) -> tuple[Mask, tuple[FilterResult, ...], list[_Rejected]]:
        mask = hosts.everywhere
        left = len(hosts)
        results: list[FilterResult] = []
        rejected: list[_Rejected] = []
        for check in self._filters:
            if request.forced and not check.even_if_forced:
                continue
            passed = check.passes(request, hosts)
            if passed is hosts.everywhere or not left:
                results.append(FilterResult(check.name, 0, left))
                continue
            survivors = mask & passed
            count = int(np.count_nonzero(survivors))
            causes: tuple[Cause, ...] = ()
            if count < left:
                parts = _split(check, request, hosts, mask & ~passed)
                rejected += parts
                causes = tuple(Cause(part.reason.text(request), int(np.count_nonzero(part.rows))) for part in parts)
            results.append(FilterResult(check.name, left - count, count, causes))
            mask, left = survivors, count
        return mask, tuple(results), rejected

    def _weigh(self, request: Request, hosts: Hosts, rows: Integers) -> tuple[Integers, Numbers, dict[str, Numbers]]:
        """The positions in `rows` of the best, in order; everyone's total; and what the totals are made of."""
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
        return _highest(totals, max(self._alternates, request.count)), totals, parts

    def _tie_break(self, number: int) -> Numbers:
        """Chance decides between equals. A random stretch of a fixed noise is as good as new noise, and free."""
        if len(self._noise) < 2 * number:
            self._noise = self._chance.random(4 * number) * self._jitter
        start = int(self._chance.integers(len(self._noise) - number))
        return self._noise[start : start + number]

    def _show(self, request: Request, hosts: Hosts, rejected: list[_Rejected]) -> tuple[Rejection, ...]:
        """Some hosts for every reason, so that a frequent one does not hide a rare one."""
        classes = classes_of(request)
        shown: list[Rejection] = []
        for number, part in enumerate(sorted(rejected, key=lambda part: np.count_nonzero(part.rows))):
            share = (self._shown - len(shown)) // (len(rejected) - number)
            rows = np.flatnonzero(part.rows)[:share]
            for row, free in zip(rows.tolist(), free_of(hosts, rows, classes), strict=True):
                shown.append(_rejection(request, hosts, part, row, free))
        return tuple(shown)


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
            parts.append(_Rejected(check, reason, rows))
    return parts


def _rejection(request: Request, hosts: Hosts, part: _Rejected, row: int, free: Free) -> Rejection:
    host = hosts.at(row)
    return Rejection(
        host=host.name,
        hypervisor_hostname=host.hypervisor_hostname,
        hypervisor_uuid=host.uuid,
        filter=part.filter.name,
        text=part.reason.text(request),
        need=part.reason.need(request),
        have=part.reason.have(request, host),
        free=free,
    )
