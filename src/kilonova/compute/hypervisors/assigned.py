"""Hypervisors assigned to a project: its managers and administrators see them by uuid, without names."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.compute.api import api
from kilonova.compute.hypervisors import model
from kilonova.compute.hypervisors.model import ShownHypervisor
from kilonova.http import Context, Response
from kilonova.http.pagination import marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import is_true

ALL = "os_compute_api:os-hypervisors:list-all"
ASSIGNED = "os_compute_api:os-hypervisors:list-assigned"
ASSIGNED_ONLY = api.behaviour("projects see the hypervisors that are assigned to them")
VISIBLE_FIELDS = ("id", "state", "status")


def sees_all(ctx: Context, rule: str) -> bool:
    """Check that the caller may list hypervisors, and return whether all are shown. Before 2.105 only `rule` counts."""
    if not ctx.has_behaviour(ASSIGNED_ONLY):
        ctx.authorize(rule)
        return True
    if not ctx.may(rule):
        ctx.authorize(ASSIGNED)
    return ctx.may(ALL)


async def list_assigned(ctx: Context, path: str, view: str) -> Response:
    """A page of the assigned hypervisors. Filtering by name and listing servers would reveal hidden details."""
    if "hypervisor_hostname_pattern" in ctx.query or is_true(ctx.query_one("with_servers")):
        ctx.authorize(ALL)
    found, limit = _after_marker(ctx, await model.assigned_to_project(ctx.db, ctx.token.project_id)), page_limit(ctx)
    page = found[:limit]
    shown = {
        "hypervisors": [_hide_details(ctx.render(view, shown)) for shown in page],
        "hypervisors_links": None,
        # The stock client looks for the next page here first, and fails on the null.
        "links": next_link(ctx, path, page[-1].hypervisor.uuid, len(page) == limit) if page else [],
    }
    return Response(shown)


async def find(ctx: Context, uuid: str) -> ShownHypervisor | None:
    """The hypervisor, if the caller may list it."""
    if ctx.may(ALL):
        return await model.get(ctx.db, "uuid", uuid)
    found = await model.assigned_to_project(ctx.db, ctx.token.project_id)
    return next((shown for shown in found if shown.hypervisor.uuid == uuid), None)


def _after_marker(ctx: Context, found: list[ShownHypervisor]) -> list[ShownHypervisor]:
    """The hypervisors after the marker, which must be one of them."""
    marker = ctx.query_one("marker")
    if marker is None:
        return found
    for place, shown in enumerate(found, 1):
        if shown.hypervisor.uuid == marker:
            return found[place:]
    raise marker_not_found(marker)


def _hide_details(shown: Mapping[str, object]) -> dict[str, object]:
    return {name: value if name in VISIBLE_FIELDS else None for name, value in shown.items()}
