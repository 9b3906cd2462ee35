"""Calls every route of an API as every caller of docs/api/authorization.md, and compares the answers with that page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from kilonova.docs.authorization import ALL, CALLERS, NO_TOKEN, NONE, OTHER, OWN, Row, callers_of, rows
from kilonova.http import Api
from kilonova.http.api import Route
from kilonova.http.client import ClientResponse
from kilonova.ids import is_uuid, new_id
from kilonova.policy import Policy
from kilonova.policy.base import Rule
from kilonova.policy.checks import AllOf, AnyOf, Check, Not, RuleReference, Target
from kilonova.policy.credentials import Credentials
from kilonova.policy.enforcer import DEFAULTS
from kilonova.services import Services
from kilonova.store import Database, Transaction
from tests.fuzz.resources import ApiCaller
from tests.fuzz.routes import RouteWalker
from tests.support.full_cloud import FullCloud

# Arguments: caller or None, method, path below the API's prefix, version, and body.
Call = Callable[[str | None, str, str, str | None, Any], Awaitable[ClientResponse]]
READS = ("GET", "HEAD")
# Rules that choose what a response shows, and filters that need it. `update_port` protects the ports of services.
DECIDE_ABOUT_RESPONSES = {
    "os_compute_api:servers:allow_all_filters",
    "volume_extension:types_extra_specs:read_sensitive",
    "update_port",
}


class RecordingPolicy(Policy):
    """Records the rules that are evaluated, and whether they allow."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluated: set[tuple[str, bool]] = set()

    def allows(self, rule: str, token: Credentials, target: Target) -> bool:
        allowed = super().allows(rule, token, target)
        self.evaluated.add((rule, allowed))
        return allowed

    def take(self) -> set[tuple[str, bool]]:
        """The evaluations since the last call."""
        taken, self.evaluated = self.evaluated, set()
        return taken


class RolledBackDatabase:
    """Rolls every transaction back, so that all callers find the same objects."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        try:
            async with self.db.transaction() as tx:
                yield tx
                raise RolledBack
        except RolledBack:
            pass


class RolledBack(Exception):
    pass


class Part(NamedTuple):
    """A request for a part of a route that a further rule decides about.

    `of_other`: the part belongs to another project. `shown`: the rule decides about the response, and refuses nobody.
    """

    rule: str
    key: str
    body: Any = None
    query: str = ""
    names: Mapping[str, Any] = {}
    version: str = ""
    of_other: bool = False
    shown: bool = False


class Comparison:
    """`own` and `other` have names of objects in the project of the callers and in another one.

    `missing`: routes whose object cannot be created here, so that allowed callers get 404.
    `special` has other names for some routes.
    `open`: routes that also serve objects of other projects, as the page says.
    """

    def __init__(
        self,
        api: Api,
        services: Services,
        call: Call,
        own: Mapping[str, Any],
        other: Mapping[str, Any],
        bodies: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda names: {},
        *,
        parts: Sequence[Part] = (),
        missing: Collection[str] = (),
        open_: Collection[str] = (),
        other_queries: Mapping[str, str] | None = None,
        special: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] | None = None,
    ) -> None:
        self.api, self.services, self.call, self.parts = api, services, call, parts
        self.names, self.bodies = own, bodies
        self.policy = services.policy = RecordingPolicy()
        self.own = RouteWalker(api, _unused, own, bodies(own))
        self.other = RouteWalker(api, _unused, other, bodies(other))
        self.special = {
            key: (
                RouteWalker(api, _unused, {**own, **own_names}, bodies(own)),
                RouteWalker(api, _unused, {**other, **other_names}, bodies(other)),
            )
            for key, (own_names, other_names) in (special or {}).items()
        }
        self.missing, self.open = missing, open_
        self.other_queries = other_queries or {}
        self.wrong: list[str] = []
        self.by_route: dict[str, set[str]] = defaultdict(set)

    async def run(self) -> None:
        """Call every route. `wrong` has one line for each answer that the page does not have."""
        real = self.services.db
        self.services.db = RolledBackDatabase(real)  # type: ignore[assignment]
        try:
            # Reads first: a deletion that is rolled back may have deleted a file.
            for row in sorted(rows(self.api), key=lambda row: row.route.method not in READS):
                if row.decides:
                    await self._compare(row)
            for part in self.parts:
                await self._compare_part(part)
        finally:
            self.services.db = real

    async def _compare(self, row: Row) -> None:
        route = row.route
        own_walker, other_walker = self.special.get(route.key, (self.own, self.other))
        own, other = own_walker.request(route), other_walker.request(route)
        if query := self.other_queries.get(route.key):
            other = (other[0], other[1] + query, *other[2:])
        answer = await self.call(None, *own)
        if row.access[NO_TOKEN] == NONE and answer.status != 401:
            self._report(route, NO_TOKEN, "own", answer)
        for caller in callers_of(self.api):
            access = row.access[caller]
            await self._check(row, caller, "own", own, allowed=access in (ALL, OWN))
            if other != own:
                refused = await self._check(row, caller, "other", other, allowed=access in (ALL, OTHER))
                if refused is not None and access == OWN:
                    await self._check_hidden(route, caller, other, refused)

    async def _check(
        self, row: Row, caller: str, whose: str, request: tuple[str, str, str | None, Any], *, allowed: bool
    ) -> ClientResponse | None:
        """Returns the answer if it is a refusal as expected."""
        self.policy.take()
        answer = await self.call(caller, *request)
        evaluated = self.policy.take()
        self.by_route[row.route.key] |= {rule for rule, _ in evaluated}
        if whose == "other" and row.route.key in self.open:
            return None
        if not allowed:
            if answer.status not in (403, 404):
                self._report(row.route, caller, whose, answer)
            return answer
        granted = not row.rule or any((rule, True) in evaluated for rule in row.rule.split(" or "))
        missing = answer.status == 404 and row.route.key in self.missing
        if answer.status in (401, 403) or (answer.status == 404 and not missing) or not granted:
            self._report(row.route, caller, whose, answer)
        return None

    async def _compare_part(self, part: Part) -> None:
        route = self.api.routes[part.key]
        first, *further = [row for row in rows(self.api) if row.route is route]
        rule = next(row for row in further if row.rule == part.rule)
        names = {**self.names, **part.names}
        method, path, version, body = RouteWalker(self.api, _unused, names, self.bodies(names)).request(route)
        request = (method, path + part.query, part.version or version, body if part.body is None else part.body)
        for caller in callers_of(self.api):
            if first.access[caller] not in (ALL, OWN):
                continue
            allowed = rule.access[caller] in (ALL, OTHER if part.of_other else OWN)
            self.policy.take()
            answer = await self.call(caller, *request)
            evaluated = self.policy.take()
            self.by_route[part.key] |= {name for name, _ in evaluated}
            refused = answer.status in (401, 403)
            if (part.rule, allowed) not in evaluated or (not part.shown and refused == allowed):
                self._report(route, f"{caller} ({part.rule})", "own", answer)

    async def _check_hidden(
        self, route: Route, caller: str, request: tuple[str, str, str | None, Any], refused: ClientResponse
    ) -> None:
        """An object of another project must answer like one that does not exist."""
        method, path, version, body = request
        ids = {part for part in re.split(r"[/?=&]", path) if is_uuid(part)}
        if not ids:
            return
        for ident in ids:
            path = path.replace(ident, new_id())
        answer = await self.call(caller, method, path, version, body)
        if (answer.status, _masked(answer)) != (refused.status, _masked(refused)):
            self.wrong.append(
                f"{route.key} as {caller}: other {refused.status} {_masked(refused)!r}, "
                f"missing {answer.status} {_masked(answer)!r}"
            )

    def _report(self, route: Route, caller: str, whose: str, answer: ClientResponse) -> None:
        self.wrong.append(f"{route.key} as {caller} on {whose}: {answer.status} {answer.body[:200]!r}")


def _masked(answer: ClientResponse) -> str:
    return re.sub(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", "ID", answer.body.decode())


def check_rules(compared: Comparison, declared: Sequence[Rule], not_called: Mapping[str, str]) -> None:
    """Every rule is asked, except for those with a reason; routes ask no rules but theirs and those of reads."""
    asked = set().union(*compared.by_route.values())
    consists = set().union(*(referenced(rule) for rule in asked))
    uncalled = {rule.name for rule in declared} - consists
    assert uncalled == set(not_called), sorted(uncalled ^ set(not_called))
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows(compared.api):
        found[row.route.key].append(row)
    reads = {row.rule for listed in found.values() for row in listed if row.route.method in READS}
    fields = {field.policy for view in compared.api.views.values() for field in view.fields.values()}
    names = {rule.name for rule in declared}
    for key, listed in found.items():
        stated = {rule for row in listed for rule in row.rule.split(" or ")}
        undeclared = (compared.by_route[key] & names) - stated - reads - fields - DECIDE_ABOUT_RESPONSES
        assert not undeclared, f"{key} asks rules that it does not declare: {sorted(undeclared)}"
        uncalled = stated - compared.by_route[key] - {""}
        if listed[0].rule in uncalled and listed[0].route.needs_token:
            raise AssertionError(f"{key} declares rules that it never asks: {sorted(uncalled)}")


def check_readers_write_nothing(api: Api, exceptions: Mapping[str, str]) -> None:
    """No caller with the role reader alone may use a route that writes."""
    allowed = {
        row.route.key
        for row in rows(api)
        if row.decides and row.route.method not in READS and row.rule
        for caller in ("reader", "system reader", "domain reader")
        if row.access.get(caller, NONE) != NONE
    }
    assert allowed == set(exceptions), sorted(allowed ^ set(exceptions))


async def _unused(method: str, path: str, version: str | None, body: Any) -> ClientResponse:
    raise NotImplementedError


def referenced(rule: str) -> set[str]:
    """The rules that a rule consists of, with itself."""
    found: set[str] = set()

    def add(check: Check) -> None:
        if isinstance(check, RuleReference):
            found.update(referenced(check.name))
        elif isinstance(check, AllOf | AnyOf):
            for each in check.checks:
                add(each)
        elif isinstance(check, Not):
            add(check.check)

    add(DEFAULTS[rule].default)
    return {rule, *found}


# The token of each caller of the page. Their project is DEMO.
TOKEN_OF = {
    "reader": "reader",
    "member": "member",
    "manager": "manager",
    "project admin": "project-admin",
    "system reader": "system-reader",
    "system admin": "system",
    "service": "service",
}


def caller_of(c: FullCloud, api: Api) -> Call:
    callers = {name: ApiCaller(c, api, TOKEN_OF[name]) for name in CALLERS}
    nobody = ApiCaller(c, api, "")

    async def call(caller: str | None, method: str, path: str, version: str | None, body: Any) -> ClientResponse:
        return await (callers[caller] if caller else nobody)(method, path, version, body)

    return call
