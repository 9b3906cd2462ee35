"""The scheduler: proposes hosts from a snapshot and says why; a claim in the database decides."""

from __future__ import annotations

from kilonova.scheduler.candidates import Candidate, Plan, claim_first
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.explain import Diagnosis
from kilonova.scheduler.request import Request
from kilonova.scheduler.scheduler import Scheduler

__all__ = [
    "Candidate",
    "Diagnosis",
    "Plan",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "claim_first",
]
