"""Validation of extra specs: the known keys and their values. Operators may use any namespace that is not listed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kilonova.http.errors import BadRequest
from kilonova.placement.names import CUSTOM_NAME, standard_classes, standard_traits

_WHOLE = r"-?\d+"
_COUNT = r"0*[1-9]\d*"
_TEXT = r".*"
_FLAG = "(?i:true|false|yes|no|on|off|t|f|y|n|1|0)"
_CPUS = r"\d+((-\d+)?(,\^?\d+(-\d+)?)*)"
_LEVEL = "custom|high|normal|low"

# Regular expressions of keys and values by namespace. Other keys in these namespaces are refused.
_NAMESPACES: dict[str, dict[str, str]] = {
    "accel": {"device_profile": _TEXT},
    "aggregate_instance_extra_specs": {_TEXT: _TEXT},
    # Attributes of hypervisors in the API and of hosts in the scheduler. The value may begin with an operator.
    "capabilities": {
        "id|uuid|service_id|host|host_ip|hypervisor_(hostname|type|version)": _TEXT,
        "vcpus(_used|_total)?|memory_mb(_used)?|local_gb(_used)?|free_ram_mb|free_disk_(gb|mb)|disk_mb_used": _TEXT,
        "total_usable_(ram_mb|disk_gb)|disk_available_least|current_workload|running_vms|num_(instances|io_ops)": _TEXT,
        "cpu_info(:(arch|features|model|vendor|topology(:(cells|cores|dies|sockets|threads))?))?": _TEXT,
    },
    "hw": {
        "boot_menu": _FLAG,
        "cpu_cores|cpu_sockets|cpu_threads|cpu_max_cores|cpu_max_sockets|cpu_max_threads": _COUNT,
        "cpu_dedicated_mask": rf"\^?{_CPUS}",
        "cpu_policy": "dedicated|mixed|shared",
        "cpu_realtime": _FLAG,
        "cpu_realtime_mask": rf"\^?{_CPUS}",
        "cpu_thread_policy": "isolate|prefer|require",
        "emulator_threads_policy": "isolate|share",
        "ephemeral_encryption": _FLAG,
        "ephemeral_encryption_format": "luks",
        "hide_hypervisor_id": _FLAG,
        "locked_memory": _FLAG,
        "maxphysaddr_bits": _WHOLE,
        "maxphysaddr_mode": "passthrough|emulate",
        "mem_encryption": _FLAG,
        "mem_encryption_model": "amd-sev|amd-sev-es",
        "mem_page_size": r"large|small|any|\d+([kKMGT]i?)?(b|bit|B)?",
        r"numa_cpus\.\d+": _CPUS,
        r"numa_mem\.\d+": _COUNT,
        "numa_nodes": _COUNT,
        "pci_numa_affinity_policy": "required|preferred|legacy|socket",
        "pmem": _TEXT,
        "pmu": _FLAG,
        "serial_port_count": r"\d+",
        "sound_model|usb_model": _TEXT,
        "tpm_model": "tpm-tis|tpm-crb",
        "tpm_secret_security": "user|host|deployment",
        "tpm_version": r"1\.2|2\.0",
        "vif_multiqueue_enabled": _FLAG,
        "viommu_model": "intel|smmuv3|virtio|auto",
        "virtio_packed_ring": _FLAG,
        "watchdog_action": "none|pause|poweroff|reset|disabled",
    },
    "hw_rng": {"allowed": _FLAG, "rate_bytes|rate_period": r"\d+"},
    "hw_video": {"ram_max_mb": r"\d+"},
    "os": {"secure_boot": "disabled|optional|required"},
    "pci_passthrough": {"alias": _TEXT},
    "quota": {
        "cpu_shares|cpu_period|cpu_quota|cpu_limit|cpu_reservation|cpu_shares_share": _WHOLE,
        "(cpu|memory|disk_io|vif)_shares_level": _LEVEL,
        "(memory|disk_io|vif)_(limit|reservation|shares_share)": _WHOLE,
        "disk_(read|write|total)_(bytes|iops)_sec(_max)?": _WHOLE,
        "vif_(inbound|outbound)_(average|burst|peak)": _WHOLE,
    },
}
# Namespaces of resource classes and traits; a suffix names the request group.
_PLACEMENT = re.compile(r"(resources|trait)[a-zA-Z0-9_-]{0,64}")
_PLAIN = {"group_policy": "none|isolate", "hide_hypervisor_id": _FLAG, "same_subtree": r"[\w-]+(\s*[,;]\s*[\w-]+)*"}


def check(specs: Mapping[str, str]) -> None:
    """Refuse unknown keys and invalid values in known namespaces."""
    for key, value in specs.items():
        known = _values(key)
        if known == []:
            raise BadRequest(f"Validation failed; extra spec '{key}' does not appear to be a valid extra spec.")
        if known and not any(re.fullmatch(pattern, value) for pattern in known):
            raise BadRequest(f"Validation failed; '{value[:80]}' is not a valid value of the extra spec '{key}'.")


def _values(key: str) -> list[str] | None:
    """Regular expressions of the key's values; None if any value is allowed."""
    namespace, colon, rest = key.partition(":")
    if not colon:
        return [_PLAIN[key]] if key in _PLAIN else None
    if placement := _PLACEMENT.fullmatch(namespace):
        return _placement_values(placement[1], rest)
    for name, keys in _NAMESPACES.items():
        if re.fullmatch(name, namespace):
            return [pattern for spelling, pattern in keys.items() if re.fullmatch(spelling, rest)]
    return None


def _placement_values(kind: str, name: str) -> list[str]:
    """A resource class or trait must be a standard one, or have the prefix CUSTOM_; it need not exist yet."""
    standard = standard_classes() if kind == "resources" else standard_traits()
    if not CUSTOM_NAME.fullmatch(name) and name not in standard:
        return []
    return [r"\d{1,9}"] if kind == "resources" else ["required|forbidden"]
