"""The compute service. `build` gathers the nouns' routes and compiles them with the microversions."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http import Api

# Each noun is a package whose `api` module declares its routes and whose `views` its views.
NOUNS = (
    "documents",
    "flavors",
    "keypairs",
    "aggregates",
    "zones",
    "services",
    "hosts",
    "hypervisors",
    "quotas",
    "limits",
    "tenant_usage",
    "usage_audits",
    "server_groups",
    "gone",
    "servers",
    "actions",
    "ips",
    "migrations",
    "placements",
    "external_events",
    "consoles",
    "diagnostics",
    "interfaces",
    "server_metadata",
    "server_passwords",
    "server_security_groups",
    "server_tags",
    "topology",
    "volume_attachments",
    "images",
    "volumes",
    "networks",
    "floating_ips",
    "security_groups",
    "baremetal_nodes",
)
# Actions that are more than a line have a module each, beside the `api` of their noun.
ACTIONS = (
    "interfaces.addresses",
    "migrations.controls",
    "servers.backing_up",
    "servers.deferring",
    "servers.evacuating",
    "servers.halting",
    "servers.live_migrating",
    "servers.locking",
    "servers.passwords",
    "servers.rebuilding",
    "servers.imaging",
    "servers.rescuing",
    "servers.resetting",
    "servers.resizing",
    "servers.shelving",
    # Repeats some of the others.
    "servers.volumes_boot",
)


@cache
def build() -> Api:
    from kilonova.compute import versions
    from kilonova.compute.api import api
    from kilonova.http.versions import load

    for noun in NOUNS:
        importlib.import_module(f"kilonova.compute.{noun}.api")
    for action in ACTIONS:
        importlib.import_module(f"kilonova.compute.{action}")
    api.compile(load(versions))
    return api
