"""docs/architecture/states.md: the states of a server, from the transition table."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from kilonova.compute.servers import states
from kilonova.docs.markdown import code, codes, table
from kilonova.docs.markdown import page as markdown


def page(root: Path) -> str:
    shown = table(["vm_state", "Status"], [[code(state), code(status)] for state, status in states.STATUS.items()])
    tasks = table(
        ["Task state", "Status while it runs"],
        [[code(task), code(status)] for task, status in states.STATUS_OF_TASK.items()],
    )
    moves = table(
        ["Action", "Allowed in", "Leads to"],
        [
            [code(action), codes(sorted(move.allowed)), codes(sorted(set(chain(*move.follows.values()))))]
            for action, move in states.TRANSITIONS.items()
        ],
    )
    return markdown(
        "# States of a server",
        f"```mermaid\n{states.draw()}\n```",
        "## Actions",
        moves,
        "## Status",
        "The status follows from the `vm_state` and from the running operation.",
        shown,
        tasks,
    )
