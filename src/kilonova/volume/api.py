"""The Block Storage API: its prefix, its range of microversions and its error format."""

from __future__ import annotations

from functools import partial

from kilonova.http import Api
from kilonova.http.faults import format_fault

LOW, HIGH = 0, 71

VOLUME_ACTION = "/volumes/{volume_id}/action"
SNAPSHOT_ACTION = "/snapshots/{snapshot_id}/action"

api = Api(
    "volume",
    prefix="/volume",
    service_types=("block-storage", "volumev3", "block-store", "volume"),
    errors=format_fault,
    major=3,
    low=LOW,
    high=HIGH,
    roots=("v3",),
    project_in_path=True,
    trailing_slash=False,
)
volume_action = partial(api.action, at=VOLUME_ACTION)
