"""Settings that had another name in a released version, and those that no longer exist."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


class ConfigError(Exception):
    pass


# Settings that had another name in a released version, in the same section unless the new name has one. The former name
# still works.
FORMER_NAMES = {
    ("operations", "sweep_seconds"): "poll_seconds",
    ("operations", "boot_hosts"): "max_build_attempts",
    ("operations", "host_seconds"): "host_timeout_seconds",
    ("compute", "live_migration_seconds"): "live_migration_seconds_per_gib",
    ("compute", "reimage_seconds"): "reimage_seconds_per_gib",
    ("compute", "shutdown_seconds"): "shutdown_timeout_seconds",
    ("volume", "copies"): "concurrent_copies",
    ("volume", "message_days"): "retention.message_days",
    ("agent", "instances"): "instances_path",
    ("libvirt", "machine"): "machine_type",
    ("libvirt", "cpu_ratio"): "cpu_allocation_ratio",
    ("libvirt", "memory_ratio"): "ram_allocation_ratio",
    ("libvirt", "disk_ratio"): "disk_allocation_ratio",
    ("scheduler", "foresight"): "proposal_seconds",
    ("scheduler", "overlap"): "change_overlap_seconds",
    ("scheduler", "refresh_every"): "refresh_seconds",
    ("scheduler", "liveness_every"): "liveness_seconds",
    ("scheduler", "reload_every"): "reload_seconds",
    ("scheduler", "shown_hosts"): "max_listed_hosts",
    ("bridges", "outside"): "external_interface",
    ("bridges", "closed"): "blocked_addresses",
    ("console", "novnc"): "novnc_path",
}
# Settings that a released version had. They are ignored, with a note, so that their files need no change at once.
REMOVED = {
    ("agent", "disk_secret"): "the control plane gives hosts a ticket for each move",
    ("libvirt", "vnc_listen"): "displays listen on no network",
    ("libvirt", "vnc_address"): "displays listen on no network",
}


def new_name(section: str, name: str) -> tuple[str, str]:
    """The present section and name of a setting."""
    before, _, new = FORMER_NAMES.get((section, name), name).rpartition(".")
    return before or section, new


def use_new_names(values: dict[str, Any]) -> dict[str, Any]:
    for section, old in FORMER_NAMES:
        settings = values.get(section)
        if isinstance(settings, dict) and old in settings:
            place, new = new_name(section, old)
            renamed = values.setdefault(place, {})
            if not isinstance(renamed, dict):
                raise ConfigError(f"Configuration: {place} is a section, not a value")
            if new in renamed:
                raise ConfigError(
                    f"Configuration: {section}.{old} is the former name of {place}.{new}; set one of them"
                )
            renamed[new] = settings.pop(old)
    return values


def drop_removed(values: dict[str, Any]) -> None:
    for (section, name), reason in REMOVED.items():
        settings = values.get(section)
        if isinstance(settings, dict) and name in settings:
            del settings[name]
            log.warning("the setting %s.%s is ignored and can be deleted: %s", section, name, reason)
