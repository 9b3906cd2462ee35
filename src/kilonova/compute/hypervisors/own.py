"""Hypervisors as a project's administrators and managers see them: those assigned to it, by uuid, without names."""

from __future__ import annotations

from typing import Any

from kilonova.compute.hypervisors import model
from kilonova.http import Answer, Context
from kilonova.http.pagination import limit_of, marker_missing, next_link
from kilonova.http.pieces import is_true
from kilonova.store import Row

ALL = "os_compute_api:os-hypervisors:list-all"
ASSIGNED = "os_compute_api:os-hypervisors:list-assigned"
OWN_ONLY = "projects see the hypervisors that are assigned to them"
SHOWN = ("id", "state", "status")


def sees_all(ctx: Context, rule: str) -> bool:
    """Whether the caller, who may list hypervisors, sees all of them. Before the behaviour the rule alone decides."""
    if not ctx.behaves(OWN_ONLY):
        ctx.authorize(rule)
        return True
    if not ctx.may(rule):
        ctx.authorize(ASSIGNED)
    return ctx.may(ALL)


async def listed(ctx: Context, path: str, view: str) -> Answer:
    """A page of them. Names can be neither asked for nor guessed, nor who else is on a host."""
    if "hypervisor_hostname_pattern" in ctx.query or is_true(ctx.query_one("with_servers")):
        ctx.authorize(ALL)
    rows, limit = _after(ctx, await model.assigned(ctx.db, ctx.token.project_id)), limit_of(ctx)
    page = rows[:limit]
    shown = {
        "hypervisors": [_bare(ctx.render(view, row)) for row in page],
        "hypervisors_links": None,
        # Where the stock client looks for the next page before it stumbles over the null.
        "links": next_link(ctx, path, page[-1]["uuid"], len(page) == limit) if page else [],
    }
    return Answer(shown)


async def find(ctx: Context, uuid: str) -> Row | None:
    """The hypervisor, if the list of the caller has it."""
    if ctx.may(ALL):
        return await model.get(ctx.db, "uuid", uuid)
    rows = await model.assigned(ctx.db, ctx.token.project_id)
    return next((row for row in rows if row["uuid"] == uuid), None)


def _after(ctx: Context, rows: list[Row]) -> list[Row]:
    """What follows the marker; one that is not among them is as good as none."""
    marker = ctx.query_one("marker")
    if marker is None:
        return rows
    for place, row in enumerate(rows, 1):
        if row["uuid"] == marker:
            return rows[place:]
    raise marker_missing(marker)


def _bare(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name in SHOWN else None for name, value in shown.items()}
