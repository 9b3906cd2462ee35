"""The scheduler: proposes hosts from a snapshot and says why; a claim in the database decides.

From a request to a candidate:

    request, specs         what is asked, read from the flavor and the image
    scheduler              keeps the snapshot fresh, plans, and remembers what it proposed
    plan                   filters/ in their order, then weighers/
    arranging              which provider of a host gives what
    candidates             what a plan names, and how a transaction takes one of them
    explain, attempts      why it came out so, as data, and as it is stored with the server
    rehearsal, fit         plans that nobody will claim; how many more would fit

The picture of the hosts:

    feed, snapshot         what the database says, written into the columns
    columns                what filters and weighers read; it consists of
    stock, loads           amounts by resource class; how busy hosts are
    aggregates, machines   host aggregates and what they say; kinds of hypervisors
    trees, sharing         hosts of several providers; providers that several hosts share

And beside them:

    facts, matching        facts of hosts by name; the small language of rules about them
    plugins, config        how filters and weighers are found; the settings
"""

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
