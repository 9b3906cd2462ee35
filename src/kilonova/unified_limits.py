"""Names of compute's resources among Keystone's unified limits, and the registered limits of a new cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.config import Config

SERVICE_TYPE = "compute"
SERVERS = "servers"
# The name of a resource class among limits is this and the name of the class.
CLASS_PREFIX = "class:"
# By the name in the API.
LIMIT_NAMES = {
    "instances": SERVERS,
    "cores": CLASS_PREFIX + "VCPU",
    "ram": CLASS_PREFIX + "MEMORY_MB",
    "metadata_items": "server_metadata_items",
    "key_pairs": "server_key_pairs",
    "server_groups": "server_groups",
    "server_group_members": "server_group_members",
    "injected_files": "server_injected_files",
    "injected_file_content_bytes": "server_injected_file_content_bytes",
    "injected_file_path_bytes": "server_injected_file_path_bytes",
}


def default_limits(config: Config) -> dict[str, int]:
    """The values of the section `quota`, by the names of their registered limits."""
    return {name: getattr(config.quota, resource) for resource, name in LIMIT_NAMES.items()}
