"""Files for the guest of a new or rebuilt server (`personality`, before 2.57): their schema and their quota.

A guest finds them on its config drive and in its metadata service. Their content is as secret as user data.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import find_source
from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.http.parameter_types import STRING, Schema, closed_object
from kilonova.store.records import encode_document

SCHEMA: Schema = {
    "type": "array",
    "items": closed_object({"path": STRING, "contents": {**STRING, "format": "base64"}}, ["path", "contents"]),
}
RequestedFiles = Sequence[dict[str, str]]


async def check(ctx: Context, files: RequestedFiles) -> None:
    """Check number, paths and contents of the files against the quota."""
    if not files:
        return
    source = await find_source(ctx.services, ctx.token.project_id)
    limits = await quotas.limits(ctx.db, ctx.token.project_id, source, ctx.token.user_id)
    paths = max(len(file["path"].encode()) for file in files)
    contents = max(len(base64.b64decode(file["contents"])) for file in files)
    for resource, requested, error in (
        ("injected_files", len(files), "Personality file limit exceeded: {} files, {} allowed"),
        ("injected_file_path_bytes", paths, "Personality file path too long: {} bytes, {} allowed"),
        ("injected_file_content_bytes", contents, "Personality file content too long: {} bytes, {} allowed"),
    ):
        if 0 <= limits[resource] < requested:
            raise Forbidden(error.format(requested, limits[resource]))


def column(files: RequestedFiles) -> str | None:
    return encode_document(files) if files else None
