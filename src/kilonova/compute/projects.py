"""Checks that a project exists."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest


async def check_project(ctx: Context, project_id: str) -> None:
    """Refuse (400) an unknown project: a quota of a misspelt project id, or access for it, would have no effect.

    If the service user may not look up projects, every id is accepted.
    """
    if project_id == ctx.token.project_id:
        return
    if not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
