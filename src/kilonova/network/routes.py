"""The network service with all its routes: what a process mounts."""

from __future__ import annotations

from kilonova.network import availability, tags, topology, versions, zones
from kilonova.network.api import api
from kilonova.network.bindings import routes as bindings
from kilonova.network.floatingips import routes as floatingips
from kilonova.network.groups import routes as groups
from kilonova.network.networks import routes as networks
from kilonova.network.ports import routes as ports
from kilonova.network.quotas import routes as quotas
from kilonova.network.routers import routes as routers
from kilonova.network.subnets import routes as subnets

# Importing a module declares its routes.
DECLARED = (
    versions,
    zones,
    networks,
    subnets,
    ports,
    bindings,
    groups,
    routers,
    floatingips,
    quotas,
    topology,
    tags,
    availability,
)
api.compile([])

__all__ = ["api"]
