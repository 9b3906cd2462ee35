"""Which routes of the public Compute API there are here, and which test proves each."""

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
GONE = "Always 410 Gone"
# In the list these stand below the version's root; here they are documents of their own.
_PAGES = {"GET /": "GET /v2.1"}


class Known(NamedTuple):
    """A route of docs/api/routes.json: when it exists in the public API."""

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


class Found(NamedTuple):
    """What there is of it here."""

    routes: list[Route]
    span: set[int]


def page(root: Path) -> str:
    api = compute.build()
    known = [Known(**each) for each in json.loads((root / "docs/api/routes.json").read_text())]
    proofs = proving_tests(root / "tests")
    here = {route: _find(api, route) for route in known}
    alive = [route for route in known if route.section != GONE]
    done = [route for route in alive if here[route].routes]
    proven = [route for route in done if _tests(here[route], proofs)]
    gone = [route for route in known if route.section == GONE]
    told = [route for route in gone if here[route].routes]
    parts = [
        "# Coverage of the Compute API",
        f"Of {len(alive)} routes and actions of the public API, {len(done)} are here and {len(proven)} of these are "
        f"proven by a test that names them. Of {len(gone)} that it has given up, {len(told)} "
        "answer 410 here too. The list is `routes.json`; the rest is read from the program and its tests.",
    ]
    for section in dict.fromkeys(route.section for route in alive):
        rows = [_row(api, route, here[route], proofs) for route in alive if route.section == section]
        parts += [f"## {section}", table(["Route", "Public API", "Here", "Proven by"], rows)]
    more = [[code(route.key), _named(route, proofs)] for route in _beyond(api, here)]
    if more:
        parts += ["## Beyond the public API", table(["Route", "Proven by"], more)]
    return markdown(*parts)


def proving_tests(directory: Path) -> dict[str, list[str]]:
    """The tests that say `@proves("GET /flavors")`, by route."""
    proofs: dict[str, list[str]] = {}
    for file in sorted(directory.rglob("test_*.py")):
        text = file.read_text()
        if "@proves(" not in text:  # most files, and reading them closely takes longest
            continue
        for name, function in _functions(ast.parse(text)):
            for route in _claims(function):
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


def _claims(function: _Function) -> Iterator[str]:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "proves":
            yield from (
                each.value for each in mark.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


def _find(api: Api, known: Known) -> Found:
    page = api.pages.get(_PAGES.get(known.shape, ""))
    if page is not None:
        return Found([page], known.span(api.high))
    routes = [
        route for route in api.routes.values() if _shape(f"{route.method} {route.path}", route.action) == known.shape
    ]
    span = _span(api, routes)
    if span != known.span(api.high):
        # One route of the list may be several here, each with a fixed word in the place of a name.
        wide = re.compile(re.escape(known.shape).replace(r"\{\}", "[^/#]+"))
        more = [
            route for route in api.routes.values() if wide.fullmatch(_shape(route.key, None)) and route not in routes
        ]
        if routes and _span(api, routes + more) == known.span(api.high):
            return Found(routes + more, _span(api, routes + more))
    return Found(routes, span)


def _span(api: Api, routes: list[Route]) -> set[int]:
    return {api.low + at for route in routes for at, form in enumerate(route.table) if form is not None}


def _shape(route: str, action: str | None) -> str:
    return _PARAMETER.sub("{}", route) + (f"#{action}" if action else "")


def _row(api: Api, known: Known, found: Found, proofs: dict[str, list[str]]) -> list[str]:
    name = f"{known.method} {known.path}" + (f" {known.action}" if known.action else "")
    tests = _tests(found, proofs)
    return [code(name), _words(api, known.span(api.high)), _state(api, known, found), shown_tests(tests)]


def _state(api: Api, known: Known, found: Found) -> str:
    if not found.routes:
        return "no"
    return "yes" if found.span == known.span(api.high) else f"only {_words(api, found.span)}"


def _words(api: Api, span: set[int]) -> str:
    first, last = min(span), max(span)
    return f"{api.major}.{first}-" + ("" if last == api.high else f"{api.major}.{last}")


def _tests(found: Found, proofs: dict[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(test for route in found.routes for test in proofs.get(route.key, [])))


def shown_tests(tests: list[str]) -> str:
    shown = [code(test.removeprefix("tests/")) for test in tests[:2]]
    return ", ".join(shown) + (f" and {len(tests) - 2} more" if len(tests) > 2 else "")


def _named(route: Route, proofs: dict[str, list[str]]) -> str:
    return shown_tests(proofs.get(route.key, []))


def _beyond(api: Api, here: dict[Known, Found]) -> list[Route]:
    listed = {route.key for found in here.values() for route in found.routes}
    return [route for route in (*api.pages.values(), *api.routes.values()) if route.key not in listed]
