"""docs/api/volume.md: routes and history of the Block Storage API. docs/architecture/volume-states.md: its states."""

from __future__ import annotations

from pathlib import Path

from kilonova.docs.coverage import route_table
from kilonova.docs.history import entry
from kilonova.docs.markdown import code, codes, table
from kilonova.docs.markdown import page as markdown
from kilonova.volume import build
from kilonova.volume.volumes import states


def page(root: Path) -> str:
    api = build()
    return markdown(
        "# The Block Storage API",
        f"Versions {api.major}.{api.low} to {api.major}.{api.high}, below `{api.prefix}/v3`, with or without the "
        "project in the path. Backups, groups, clusters, encryption, replication and quality of service are not "
        f"implemented. The OpenAPI document of any version is at `{api.prefix}/openapi.json?version=3.71`.",
        "## Routes",
        route_table(api, root),
        "## History",
        *(entry(version, "###") for version in api.microversions),
    )


def state_page(root: Path) -> str:
    rows = [
        [code(action), codes(move.allowed), *(code(status) if status else "" for status in _statuses(move))]
        for action, move in states.TRANSITIONS.items()
    ]
    return markdown(
        "# States of a volume",
        f"```mermaid\n{states.draw()}\n```",
        "## Actions",
        f"`{states.AT_REST}` is `in-use` if the volume is attached to a server, `attaching` or `reserved` if an "
        "attachment is being made, else `available`.",
        table(["Action", "Allowed in", "During the action", "Afterwards", "On failure"], rows),
    )


def _statuses(move: states.Transition) -> tuple[str | None, str | None, str | None]:
    return move.meanwhile, move.then, move.failed
