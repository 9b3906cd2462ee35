"""The Block Storage API: where it is mounted, its range of versions, and how it writes errors."""

from __future__ import annotations

from kilonova.http import Api
from kilonova.http.faults import fault

LOW, HIGH = 0, 71

VOLUME_ACTION = "/volumes/{volume_id}/action"
SNAPSHOT_ACTION = "/snapshots/{snapshot_id}/action"

api = Api(
    "volume",
    prefix="/volume",
    errors=fault,
    major=3,
    low=LOW,
    high=HIGH,
    roots=("v3",),
    project_in_path=True,
    trailing_slash=False,
)
