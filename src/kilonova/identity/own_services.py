"""The catalogue's entries of the cloud's own services: those of this process, and those that the configuration names.

They are rows of the same form as the registered entries, but not stored: their URLs follow `public_url`.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from kilonova.http import Context
from kilonova.identity.api import api
from kilonova.store import Row

if TYPE_CHECKING:
    from kilonova.config import Config

INTERFACES = ("public", "internal", "admin")
_NAMESPACE = uuid.UUID("6b1c6d4e-3f0a-5a57-9f0e-6a1f7d1f7c11")


class OwnService(NamedTuple):
    """`url` is absolute, or a path below the process's own base."""

    type: str
    name: str
    url: str

    @property
    def is_local(self) -> bool:
        return self.url.startswith("/")

    @property
    def mount(self) -> str:
        """The path's first part; empty if the service is elsewhere."""
        return self.url.split("/")[1] if self.is_local else ""


def all_services(config: Config) -> list[OwnService]:
    """The services of a cloud with this configuration, except identity."""

    def url_of(service: str) -> str:
        if config.is_built_in(service):
            return f"/{service}"
        return str(getattr(config, service).url).rstrip("/")

    volumes, shares = f"{url_of('volume')}/v3", f"{url_of('share')}/v2"
    return [
        OwnService("compute", "nova", "/compute/v2.1"),
        OwnService("placement", "placement", "/placement"),
        OwnService("image", "glance", url_of("image")),
        OwnService("network", "neutron", url_of("network")),
        OwnService("block-storage", "cinder", volumes),
        OwnService("volumev3", "cinderv3", volumes),
        OwnService("shared-file-system", "manila", shares),
        OwnService("sharev2", "manilav2", shares),
    ]


def local_services(config: Config) -> tuple[OwnService, ...]:
    """Those that Kilonova itself serves beside a real Keystone."""
    built_in = [name for name in ("image", "network", "volume", "share") if config.is_built_in(name)]
    return tuple(service for service in all_services(config) if service.mount in ("compute", "placement", *built_in))


def _services(ctx: Context) -> list[OwnService]:
    known = [OwnService("identity", "keystone", "/identity"), *all_services(ctx.services.config)]
    mounts = ctx.services.mounts
    return [service for service in known if not service.is_local or service.mount in mounts]


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
