"""Snapshots of volumes in use need no `force`, which must not be false any more."""

from kilonova.http.parameter_types import BOOLEAN
from kilonova.http.versions import Microversion, request
from kilonova.volume.snapshots.api import UNFORCED

version = Microversion(
    "3.66",
    __doc__,
    [UNFORCED, request("POST /snapshots").changes("snapshot.force", before=BOOLEAN)],
)
