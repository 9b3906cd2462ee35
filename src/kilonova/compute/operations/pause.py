"""Pause: a server's processors stand still, and everything stays in its memory."""

from __future__ import annotations

from kilonova.compute.operations import halting
from kilonova.compute.servers import states
from kilonova.hosts import messages


class Pause(halting.Halting):
    kind = "pause"
    action = "pause"
    task_state = "pausing"
    verb, opposite = messages.Pause, messages.Unpause
    after = states.PAUSED, states.HALTED
    steps = halting.steps("pause guest", deadline=300)
