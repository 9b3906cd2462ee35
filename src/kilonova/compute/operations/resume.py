"""Resume: a suspended server goes on where it was."""

from __future__ import annotations

from kilonova.compute.operations import halting
from kilonova.compute.servers import states
from kilonova.hosts import messages


class Resume(halting.Halting):
    kind = "resume"
    action = "resume"
    task_state = "resuming"
    verb, opposite = messages.Resume, messages.Suspend
    after = states.ACTIVE, states.RUNNING
    steps = halting.steps("resume guest", deadline=1800)
