"""How limits are shown to those who live within them."""

from __future__ import annotations

from kilonova.http import View, col
from kilonova.volume.api import api

_WHOLE = {"type": "integer"}
_USED = "limits_extension:used_limits"
# The key of the view, and the resource whose limit it is.
MAXIMA = {
    "maxTotalVolumes": "volumes",
    "maxTotalSnapshots": "snapshots",
    "maxTotalVolumeGigabytes": "gigabytes",
    "maxTotalBackups": "backups",
    "maxTotalBackupGigabytes": "backup_gigabytes",
}
USED = {
    "totalVolumesUsed": "volumes",
    "totalSnapshotsUsed": "snapshots",
    "totalGigabytesUsed": "gigabytes",
    "totalBackupsUsed": "backups",
    "totalBackupGigabytesUsed": "backup_gigabytes",
}

api.view(
    View(
        "absolute limits",
        {
            **{key: col(resource, _WHOLE) for key, resource in MAXIMA.items()},
            **{key: col(f"{resource} used", _WHOLE, _USED) for key, resource in USED.items()},
        },
    )
)
