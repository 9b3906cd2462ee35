"""Route of extensions: a fixed list, which old clients read."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.volume.api import api

_UPDATED = "2026-01-01T00:00:00+00:00"
# Alias, name, description.
_EXTENSIONS = (
    ("os-admin-actions", "AdminActions", "Set states, and delete and detach by force."),
    ("os-availability-zone", "AvailabilityZones", "List availability zones."),
    ("capabilities", "Capabilities", "Show capabilities of back ends."),
    ("os-extended-snapshot-attributes", "ExtendedSnapshotAttributes", "Progress and project of snapshots."),
    ("os-hosts", "Hosts", "Show the hosts of the service."),
    ("os-quota-class-sets", "QuotaClasses", "Default quotas."),
    ("os-quota-sets", "Quotas", "Quotas of projects."),
    ("scheduler-stats", "SchedulerStats", "List the pools of back ends."),
    ("os-services", "Services", "List the services."),
    ("os-snapshot-actions", "SnapshotActions", "Report the progress of snapshots."),
    ("os-types-extra-specs", "TypesExtraSpecs", "Extra specs of types."),
    ("os-types-manage", "TypesManage", "Create, update and delete types."),
    ("os-used-limits", "UsedLimits", "Usage of the limits."),
    ("os-volume-actions", "VolumeActions", "Attach, extend and upload volumes."),
    ("os-vol-host-attr", "VolumeHostAttribute", "The back end of a volume."),
    ("os-vol-image-meta", "VolumeImageMetadata", "Image metadata of a volume."),
    ("os-vol-tenant-attr", "VolumeTenantAttribute", "The project of a volume."),
    ("os-volume-transfer", "VolumeTransfer", "Transfer volumes to other projects."),
    ("os-volume-type-access", "VolumeTypeAccess", "Project access to private types."),
)


@api.route("GET", "/extensions", authenticated=True)
async def index(ctx: Context) -> Response:
    """List extensions."""
    shown = [
        {"alias": alias, "name": name, "description": description, "updated": _UPDATED, "links": []}
        for alias, name, description in _EXTENSIONS
    ]
    return Response({"extensions": shown})
