"""The one back end of the built-in service, files in the data directory, as operators see it."""

from __future__ import annotations

from typing import Any

from kilonova import __version__

# Host, back end and pool, as the API joins them.
HOST = "kilonova"
BACKEND = "kilonova@files"
POOL = "kilonova@files#files"
# What it says of itself, and what it can do.
IDENTITY: dict[str, Any] = {
    "vendor_name": "Kilonova",
    "volume_backend_name": BACKEND.partition("@")[2],
    "storage_protocol": "kilonova_file",
    "driver_version": __version__,
}
ABILITIES: dict[str, Any] = {
    "thin_provisioning_support": True,
    "multiattach": True,
    "online_extend_support": True,
    "QoS_support": False,
}
CAPABILITIES = {**IDENTITY, **ABILITIES}
