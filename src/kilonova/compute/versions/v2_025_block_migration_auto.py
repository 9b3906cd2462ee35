"""Live migration decides by itself whether disks are copied (`auto`), and loses `disk_over_commit`."""

from kilonova.http.parameter_types import BOOLEAN
from kilonova.http.versions import Microversion, action

LIVE = action("os-migrateLive")

version = Microversion(
    "2.25",
    __doc__,
    [
        LIVE.changes("block_migration", before=BOOLEAN, required_before=True),
        LIVE.loses("disk_over_commit", schema=BOOLEAN, required=True),
    ],
)
