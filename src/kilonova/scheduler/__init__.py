"""The scheduler: proposes hosts from a snapshot and explains its choice. A claim in the database decides.

From a request to a candidate:

    request, requirements            the request, and what flavor and image require
    scheduler                        keeps the snapshot current and makes plans
    plan                             runs filters/ and weighers/
    allocations                      chooses the providers of a host to allocate from
    candidates                       plans, and the claim of a candidate in a transaction
    explain, attempts                the diagnosis of a plan, and how it is stored
    dry_run, fit                     plans without claims, and capacity planning

The snapshot of all hosts:

    snapshot_loader, snapshot        reads the database, and updates the columns
    host_columns, arrays             the columns that filters and weighers read:
    inventory, proposals             resources by class, and proposed allocations
    aggregates, hypervisors          host aggregates with metadata, and hypervisor types
    host_load                        servers, operations, failed builds, unreachable hosts
    provider_trees                   hosts with several resource providers
    sharing_providers                providers that share over aggregates

Helpers: host_attributes and extra_spec_rules for extra specs and hints, plugins, config.
"""

from __future__ import annotations

from kilonova.scheduler.candidates import Candidate, Plan, claim_first
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.explain import Diagnosis
from kilonova.scheduler.request import Request
from kilonova.scheduler.scheduler import Scheduler

__all__ = ["Candidate", "Diagnosis", "Plan", "Request", "Scheduler", "SchedulerConfig", "claim_first"]
