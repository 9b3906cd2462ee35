"""The routes of the Placement API, from when on they are there, which test proves each, and the API's history."""

from __future__ import annotations

from pathlib import Path

from kilonova.docs.coverage import proving_tests, shown_tests
from kilonova.docs.history import entry
from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown
from kilonova.http import Api, Route
from kilonova.placement.build import build


def page(root: Path) -> str:
    api = build()
    proofs = proving_tests(root / "tests")
    return markdown(
        "# The Placement API",
        f"Versions {api.major}.{api.low} to {api.major}.{api.high}, below `{api.prefix}` and, with `--placement-port`, "
        f"at the root of a port of its own. All of its {len(api.routes)} routes are here. The document of the API at "
        "any version is at `/placement/openapi.json?version=1.39`.",
        "## Routes",
        table(["Route", "From", "What", "Proven by"], [_row(api, route, proofs) for route in _ordered(api)]),
        "## History",
        *(entry(version, "###") for version in api.microversions),
    )


def _ordered(api: Api) -> list[Route]:
    return sorted(api.routes.values(), key=lambda route: (route.path, route.method))


def _row(api: Api, route: Route, proofs: dict[str, list[str]]) -> list[str]:
    first = next(minor for minor, form in enumerate(route.table, api.low) if form is not None)
    tests = proofs.get(f"{route.method} {api.prefix}{route.path}", [])
    return [code(route.key), f"{api.major}.{first}", route.summary, shown_tests(tests)]
