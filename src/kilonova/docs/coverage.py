"""docs/api/coverage.md: which routes of the public Compute API are implemented, and which test proves it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kilonova import compute
from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown
from kilonova.http import Api, Route

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PARAMETER = re.compile(r"\{\w+\}")
REMOVED = "Always 410 Gone"
# Routes of the list that are documents of their own here.
_PAGES = {"GET /": "GET /v2.1"}


class PublicRoute(NamedTuple):
    """A route of docs/api/routes.json, with the microversions of the public API that have it."""

    section: str
    method: str
    path: str
    action: str
    first: int
    last: int | None

    @property
    def shape(self) -> str:
        return _shape(f"{self.method} {self.path}", self.action)

    def span(self, high: int) -> set[int]:
        return set(range(self.first, (self.last or high) + 1))


class Implementation(NamedTuple):
    """The routes that implement a public route, and the microversions that they cover."""

    routes: list[Route]
    span: set[int]


def page(root: Path) -> str:
    api = compute.build()
    known = [PublicRoute(**item) for item in json.loads((root / "docs/api/routes.json").read_text())]
    proofs = proving_tests(root / "tests")
    here = {route: _find(api, route) for route in known}
    alive = [route for route in known if route.section != REMOVED]
    done = [route for route in alive if here[route].routes]
    proven = [route for route in done if _tests_of(here[route], proofs)]
    removed = [route for route in known if route.section == REMOVED]
    answered = [route for route in removed if here[route].routes]
    parts = [
        "# Coverage of the Compute API",
        f"Of {len(alive)} routes and actions of the public API, {len(done)} are implemented. {len(proven)} of these "
        f"are proven by a test that names them. Of {len(removed)} removed routes, {len(answered)} answer 410. "
        "The list is `routes.json`; the rest is read from the code and its tests.",
    ]
    for section in dict.fromkeys(route.section for route in alive):
        rows = [_row(api, route, here[route], proofs) for route in alive if route.section == section]
        parts += [f"## {section}", table(["Route", "Public API", "Kilonova", "Proven by"], rows)]
    more = [[code(route.key), _proving_tests(route, proofs)] for route in _extra_routes(api, here)]
    if more:
        parts += ["## Beyond the public API", table(["Route", "Proven by"], more)]
    return markdown(*parts)


def proving_tests(directory: Path) -> dict[str, list[str]]:
    """The tests that say `@proves("GET /flavors")`, by route."""
    proofs: dict[str, list[str]] = {}
    for file in sorted(directory.rglob("test_*.py")):
        text = file.read_text()
        if "@proves(" not in text:  # skips most files, because parsing is slow
            continue
        for name, function in _functions(ast.parse(text)):
            for route in _proven_routes(function):
                proofs.setdefault(route, []).append(f"{file.relative_to(directory.parent)}::{name}")
    return proofs


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    for node in tree.body:
        if isinstance(node, _Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, _Function):
                    yield f"{node.name}::{inner.name}", inner


def _proven_routes(function: _Function) -> Iterator[str]:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "proves":
            yield from (
                item.value for item in mark.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
            )


def _find(api: Api, public: PublicRoute) -> Implementation:
    page = api.document_routes.get(_PAGES.get(public.shape, ""))
    if page is not None:
        return Implementation([page], public.span(api.high))
    routes = [
        route for route in api.routes.values() if _shape(f"{route.method} {route.path}", route.action) == public.shape
    ]
    span = _span(api, routes)
    if span != public.span(api.high):
        # One public route may be several here, with a fixed word in the place of a parameter.
        wide = re.compile(re.escape(public.shape).replace(r"\{\}", "[^/#]+"))
        more = [
            route for route in api.routes.values() if wide.fullmatch(_shape(route.key, None)) and route not in routes
        ]
        if routes and _span(api, routes + more) == public.span(api.high):
            return Implementation(routes + more, _span(api, routes + more))
    return Implementation(routes, span)


def _span(api: Api, routes: list[Route]) -> set[int]:
    return {api.low + at for route in routes for at, version in enumerate(route.versions) if version is not None}


def _shape(route: str, action: str | None) -> str:
    return _PARAMETER.sub("{}", route) + (f"#{action}" if action else "")


def _row(api: Api, public: PublicRoute, found: Implementation, proofs: dict[str, list[str]]) -> list[str]:
    name = f"{public.method} {public.path}" + (f" {public.action}" if public.action else "")
    tests = _tests_of(found, proofs)
    return [code(name), _format_range(api, public.span(api.high)), _state(api, public, found), _shown_tests(tests)]


def _state(api: Api, public: PublicRoute, found: Implementation) -> str:
    if not found.routes:
        return "no"
    return "yes" if found.span == public.span(api.high) else f"only {_format_range(api, found.span)}"


def _format_range(api: Api, span: set[int]) -> str:
    first, last = min(span), max(span)
    return f"{api.major}.{first}-" + ("" if last == api.high else f"{api.major}.{last}")


def _tests_of(found: Implementation, proofs: dict[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(test for route in found.routes for test in proofs.get(route.key, [])))


def _shown_tests(tests: list[str]) -> str:
    shown = [code(test.removeprefix("tests/")) for test in tests[:2]]
    return ", ".join(shown) + (f" and {len(tests) - 2} more" if len(tests) > 2 else "")


def route_table(api: Api, root: Path) -> str:
    """All routes of an API with their first version, summary and tests."""
    proofs = proving_tests(root / "tests")
    routes = sorted(api.routes.values(), key=lambda route: (route.path, route.method, route.action or ""))
    return table(["Route", "Since", "Summary", "Proven by"], [_route_row(api, route, proofs) for route in routes])


def _route_row(api: Api, route: Route, proofs: dict[str, list[str]]) -> list[str]:
    first = next(minor for minor, version in enumerate(route.versions, api.low) if version is not None)
    tests = proofs.get(f"{route.method} {api.prefix}{route.path}" + (f"#{route.action}" if route.action else ""), [])
    return [code(route.key), f"{api.major}.{first}", route.summary, _shown_tests(tests)]


def _proving_tests(route: Route, proofs: dict[str, list[str]]) -> str:
    return _shown_tests(proofs.get(route.key, []))


def _extra_routes(api: Api, here: dict[PublicRoute, Implementation]) -> list[Route]:
    listed = {route.key for found in here.values() for route in found.routes}
    return [route for route in (*api.document_routes.values(), *api.routes.values()) if route.key not in listed]
