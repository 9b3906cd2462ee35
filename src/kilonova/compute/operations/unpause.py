"""Unpause: a paused server goes on where it was."""

from __future__ import annotations

from kilonova.compute.operations import halting
from kilonova.compute.servers import states
from kilonova.hosts import messages


class Unpause(halting.Halting):
    kind = "unpause"
    action = "unpause"
    task_state = "unpausing"
    verb, opposite = messages.Unpause, messages.Pause
    after = states.ACTIVE, states.RUNNING
    steps = halting.steps("unpause guest", deadline=300)
