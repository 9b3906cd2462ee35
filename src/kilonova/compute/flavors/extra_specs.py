"""Which extra specs are known, and what their values must be. Namespaces not named here belong to the operator."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kilonova.http.errors import BadRequest
from kilonova.placement.names import CUSTOM, standard_classes, standard_traits

_WHOLE = r"-?\d+"
_COUNT = r"0*[1-9]\d*"
_TEXT = r".*"
_FLAG = "(?i:true|false|yes|no|on|off|t|f|y|n|1|0)"
_CPUS = r"\d+((-\d+)?(,\^?\d+(-\d+)?)*)"
_LEVEL = "custom|high|normal|low"

# Keys and values as regular expressions, per namespace: whatever else stands in such a namespace is a mistake.
_NAMESPACES: dict[str, dict[str, str]] = {
    "accel": {"device_profile": _TEXT},
    "aggregate_instance_extra_specs": {_TEXT: _TEXT},
    "capabilities": {_TEXT: _TEXT},
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
# Namespaces with the names of placement behind them; a suffix tells groups apart.
_PLACEMENT = re.compile(r"(resources|trait)[a-zA-Z0-9_-]{0,64}")
_PLAIN = {"group_policy": "none|isolate", "hide_hypervisor_id": _FLAG, "same_subtree": r"[\w-]+(\s*[,;]\s*[\w-]+)*"}


def check(specs: Mapping[str, str]) -> None:
    """Refuse a misspelt key or an impossible value in a namespace that is known."""
    for key, value in specs.items():
        known = _values(key)
        if known == []:
            raise BadRequest(f"Validation failed; extra spec '{key}' does not appear to be a valid extra spec.")
        if known and not any(re.fullmatch(pattern, value) for pattern in known):
            raise BadRequest(f"Validation failed; '{value[:80]}' is not a valid value of the extra spec '{key}'.")


def _values(key: str) -> list[str] | None:
    """What the key may be set to; None where anything goes."""
    namespace, colon, rest = key.partition(":")
    if not colon:
        return [_PLAIN[key]] if key in _PLAIN else None
    if placement := _PLACEMENT.fullmatch(namespace):
        return _of_placement(placement[1], rest)
    for name, keys in _NAMESPACES.items():
        if re.fullmatch(name, namespace):
            return [pattern for spelling, pattern in keys.items() if re.fullmatch(spelling, rest)]
    return None


def _of_placement(kind: str, name: str) -> list[str]:
    """A class or trait is a standard one or a custom one, whether or not that exists yet."""
    standard = standard_classes() if kind == "resources" else standard_traits()
    if not CUSTOM.fullmatch(name) and name not in standard:
        return []
    return [r"\d{1,9}"] if kind == "resources" else ["required|forbidden"]
