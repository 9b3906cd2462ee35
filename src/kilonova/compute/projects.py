"""Checks that a project exists."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest


async def check_project(ctx: Context, project_id: str) -> None:
    """Refuse an unknown project, to which a misspelt id would give quota or access without effect.

    Any id is valid where the service user may not look projects up.
    """
    if project_id == ctx.token.project_id:
        return
    if not await ctx.services.identity.has_project(project_id):
        raise BadRequest(f"Project ID {project_id[:80]} is not a valid project.")
