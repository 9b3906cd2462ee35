"""The routes of the Block Storage API, from when on they are there, which test proves each, and the API's history."""

from __future__ import annotations

from pathlib import Path

from kilonova.docs.coverage import proving_tests, shown_tests
from kilonova.docs.history import entry
from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown
from kilonova.http import Api, Route
from kilonova.volume import build
from kilonova.volume.volumes import states


def page(root: Path) -> str:
    api = build()
    proofs = proving_tests(root / "tests")
    routes = sorted(api.routes.values(), key=lambda route: (route.path, route.method, route.action or ""))
    return markdown(
        "# The Block Storage API",
        f"Versions {api.major}.{api.low} to {api.major}.{api.high}, below `{api.prefix}/v3`, with or without the "
        "project in the path. Backups, groups, clusters, encryption, replication and quality of service are not "
        f"offered. The document of the API at any version is at `{api.prefix}/openapi.json?version=3.71`.",
        "## Routes",
        table(["Route", "From", "What", "Proven by"], [_row(api, route, proofs) for route in routes]),
        "## History",
        *(entry(version, "###") for version in api.microversions),
    )


def _row(api: Api, route: Route, proofs: dict[str, list[str]]) -> list[str]:
    first = next(minor for minor, form in enumerate(route.table, api.low) if form is not None)
    tests = proofs.get(f"{route.method} {api.prefix}{route.path}" + (f"#{route.action}" if route.action else ""), [])
    return [code(route.key), f"{api.major}.{first}", route.summary, shown_tests(tests)]


def state_page(root: Path) -> str:
    rows = [
        [code(action), _words(move.allowed), *(code(status) if status else "" for status in _course(move))]
        for action, move in states.TRANSITIONS.items()
    ]
    return markdown(
        "# States of a volume",
        f"```mermaid\n{states.draw()}\n```",
        "## Actions",
        f"`{states.SETTLED}` is `in-use` where a server has the volume, else `attaching` or `reserved` where one is "
        "about to have it, else `available`.",
        table(["Action", "Allowed in", "Meanwhile", "Then", "On failure"], rows),
    )


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(map(code, names))


def _course(move: states.Transition) -> tuple[str | None, str | None, str | None]:
    return move.meanwhile, move.then, move.failed
