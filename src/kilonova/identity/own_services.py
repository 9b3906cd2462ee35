"""The catalogue's entries of the cloud's own services: those of this process, and those that the configuration names.

They are rows of the same form as the registered entries, but not stored: their URLs follow `public_url`.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import NamedTuple

from kilonova.http import Context
from kilonova.identity.api import api
from kilonova.store import Row

INTERFACES = ("public", "internal", "admin")
_NAMESPACE = uuid.UUID("6b1c6d4e-3f0a-5a57-9f0e-6a1f7d1f7c11")


class _Service(NamedTuple):
    """`url` is absolute, or a path below the process's own base."""

    type: str
    name: str
    url: str

    @property
    def is_local(self) -> bool:
        return self.url.startswith("/")


def _services(ctx: Context) -> list[_Service]:
    config = ctx.services.config

    def url_of(service: str) -> str:
        if config.is_built_in(service):
            return f"/{service}"
        return str(getattr(config, service).url).rstrip("/")

    volumes, shares = f"{url_of('volume')}/v3", f"{url_of('share')}/v2"
    known = (
        _Service("identity", "keystone", "/identity"),
        _Service("compute", "nova", "/compute/v2.1"),
        _Service("placement", "placement", "/placement"),
        _Service("image", "glance", url_of("image")),
        _Service("network", "neutron", url_of("network")),
        _Service("block-storage", "cinder", volumes),
        _Service("volumev3", "cinderv3", volumes),
        _Service("shared-file-system", "manila", shares),
        _Service("sharev2", "manilav2", shares),
    )
    mounts = ctx.services.mounts
    return [service for service in known if not service.is_local or service.url.split("/")[1] in mounts]


@cache
def _stable_id(*parts: str) -> str:
    """Derived ids, so that they stay the same after a restart."""
    return uuid.uuid5(_NAMESPACE, " ".join(parts)).hex


def services(ctx: Context) -> list[Row]:
    return [
        {
            "id": _stable_id(service.type),
            "type": service.type,
            "name": service.name,
            "description": "",
            "enabled": True,
            "extra": "{}",
        }
        for service in _services(ctx)
    ]


def endpoints(ctx: Context) -> list[Row]:
    """Their URLs begin with the scheme and host that the client used, or with `public_url`."""
    base_url, region = ctx.base_url().removesuffix(api.prefix), ctx.services.config.identity.region
    return [
        {
            "id": _stable_id(service.type, interface, region),
            "service_id": _stable_id(service.type),
            "region_id": region,
            "interface": interface,
            "url": base_url + service.url if service.is_local else service.url,
            "enabled": True,
            "extra": "{}",
        }
        for service in _services(ctx)
        for interface in INTERFACES
    ]


def regions(ctx: Context) -> list[Row]:
    """The region of the own endpoints."""
    return [{"id": ctx.services.config.identity.region, "description": "", "parent_region_id": None, "extra": "{}"}]
