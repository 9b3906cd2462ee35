"""The route of extensions: what is offered beside volumes, in the words of a time when that differed."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.volume.api import api

_UPDATED = "2026-01-01T00:00:00+00:00"
# Alias, name, description.
_OFFERED = (
    ("os-admin-actions", "AdminActions", "Set states, and delete and detach by force."),
    ("os-availability-zone", "AvailabilityZones", "List availability zones."),
    ("capabilities", "Capabilities", "Show what back ends can do."),
    ("os-extended-snapshot-attributes", "ExtendedSnapshotAttributes", "Progress and project of snapshots."),
    ("os-hosts", "Hosts", "Show the hosts of the service."),
    ("os-quota-class-sets", "QuotaClasses", "Default quotas."),
    ("os-quota-sets", "Quotas", "Quotas of projects."),
    ("scheduler-stats", "SchedulerStats", "List the pools of back ends."),
    ("os-services", "Services", "Show the parts of the service."),
    ("os-snapshot-actions", "SnapshotActions", "Say how far snapshots are."),
    ("os-types-extra-specs", "TypesExtraSpecs", "Extra specs of types."),
    ("os-types-manage", "TypesManage", "Create, change and delete types."),
    ("os-used-limits", "UsedLimits", "What is used of the limits."),
    ("os-volume-actions", "VolumeActions", "Attach, extend and upload volumes."),
    ("os-vol-host-attr", "VolumeHostAttribute", "The back end of a volume."),
    ("os-vol-image-meta", "VolumeImageMetadata", "What is known of the image of a volume."),
    ("os-vol-tenant-attr", "VolumeTenantAttribute", "The project of a volume."),
    ("os-volume-transfer", "VolumeTransfer", "Hand volumes over to other projects."),
    ("os-volume-type-access", "VolumeTypeAccess", "Who may use private types."),
)


@api.route("GET", "/extensions")
async def index(ctx: Context) -> Answer:
    """List extensions."""
    shown = [
        {"alias": alias, "name": name, "description": description, "updated": _UPDATED, "links": []}
        for alias, name, description in _OFFERED
    ]
    return Answer({"extensions": shown})
