"""The Shared File System API: its prefix, its range of microversions and its error format."""

from __future__ import annotations

from functools import partial

from kilonova.http import Api
from kilonova.http.faults import format_fault

LOW, HIGH = 55, 82
SHARE_ACTION = "/shares/{share_id}/action"

api = Api(
    "shared-file-system",
    prefix="/share",
    errors=format_fault,
    major=2,
    low=LOW,
    high=HIGH,
    roots=("v2",),
    legacy_header="X-OpenStack-Manila-API-Version",
    project_in_path=True,
    trailing_slash=False,
)
share_action = partial(api.action, at=SHARE_ACTION)
