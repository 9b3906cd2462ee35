"""docs/architecture/states.md: the states of a server, from the transition table."""

from __future__ import annotations

from collections.abc import Mapping
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
    return markdown(
        "# States of a server",
        f"```mermaid\n{states.draw()}\n```",
        "## Actions",
        _transitions("Action", states.TRANSITIONS),
        "A shelved server in `error` allows only actions that `shelved` or `shelved_offloaded` allows too. No other"
        " server in `error` can be unshelved.",
        "## Other changes",
        "`compute/servers/model.py` refuses every change of the state that neither table has.",
        _transitions("Change", states.CHANGES),
        "## Status",
        "The status follows from the `vm_state` and from the running operation.",
        shown,
        tasks,
    )


def _transitions(heading: str, transitions: Mapping[str, states.Transition]) -> str:
    return table(
        [heading, "Allowed in", "Leads to"],
        [
            [code(name), codes(sorted(move.allowed)), codes(sorted(set(chain(*move.follows.values()))))]
            for name, move in transitions.items()
        ],
    )
