"""The states of a server, drawn from the table that decides about them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from kilonova.compute.servers import states
from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown


def _words(names: Iterable[str]) -> str:
    return ", ".join(map(code, sorted(names)))


def page(root: Path) -> str:
    shown = table(["vm_state", "Status"], [[code(state), code(status)] for state, status in states.STATUS.items()])
    tasks = table(
        ["Task state", "Status while it runs"],
        [[code(task), code(status)] for task, status in states.STATUS_OF_TASK.items()],
    )
    moves = table(
        ["Action", "Allowed in", "Leads to"],
        [
            [code(action), _words(move.allowed), _words(set(chain(*move.follows.values())))]
            for action, move in states.TRANSITIONS.items()
        ],
    )
    return markdown(
        "# States of a server",
        f"```mermaid\n{states.draw()}\n```",
        "## Actions",
        moves,
        "## What is shown",
        "The status follows from the state and from the operation that runs.",
        shown,
        tasks,
    )
