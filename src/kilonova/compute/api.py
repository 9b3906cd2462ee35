"""The Compute API: its prefix, its range of microversions and its error format."""

from __future__ import annotations

from kilonova.http import Api
from kilonova.http.faults import format_fault
from kilonova.http.media_types import JSON

LOW, HIGH = 1, 106

api = Api(
    "compute",
    prefix="/compute",
    errors=format_fault,
    major=2,
    low=LOW,
    high=HIGH,
    roots=("v2.1",),
    frozen_roots=("v2",),
    legacy_header="X-OpenStack-Nova-API-Version",
    request_id_header="X-Compute-Request-Id",
    project_in_path=True,
    # As in Nova, a body of the type text/plain is read as if the request had no content type.
    body_types=(JSON, "application/vnd.openstack.compute+json", "text/plain"),
    trailing_slash=False,
)
