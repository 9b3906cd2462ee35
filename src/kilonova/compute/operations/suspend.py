"""Suspend: a server's memory is written to its host's disk, and it stands still."""

from __future__ import annotations

from kilonova.compute.operations import halting
from kilonova.compute.servers import states
from kilonova.hosts import messages


class Suspend(halting.Halting):
    kind = "suspend"
    action = "suspend"
    task_state = "suspending"
    verb, opposite = messages.Suspend, messages.Resume
    after = states.SUSPENDED, states.SAVED
    steps = halting.steps("suspend guest", deadline=1800)
