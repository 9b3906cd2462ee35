"""Names and capabilities of the only back end: files in the data directory."""

from __future__ import annotations

from kilonova import __version__

# Names in the form of the API: host, host@backend, host@backend#pool.
HOST = "kilonova"
BACKEND = "kilonova@files"
POOL = "kilonova@files#files"
IDENTITY: dict[str, object] = {
    "vendor_name": "Kilonova",
    "volume_backend_name": BACKEND.partition("@")[2],
    "storage_protocol": "kilonova_file",
    "driver_version": __version__,
}
ABILITIES: dict[str, object] = {
    "thin_provisioning_support": True,
    "multiattach": True,
    "online_extend_support": True,
    "QoS_support": False,
}
CAPABILITIES = {**IDENTITY, **ABILITIES}
