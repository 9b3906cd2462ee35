"""Checks the settings of a control-plane process before it starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from kilonova import datadir
from kilonova.config_companions import BUILT_IN

if TYPE_CHECKING:
    from kilonova.config import Api, Config

DRIVERS = ("sim", "libvirt")
# Upper bound of the time in which a revoked token is accepted.
MAX_TOKEN_CACHE_SECONDS = 3600.0


class CannotStart(Exception):
    """The process cannot start or continue. The text is for the operator."""


class Roles(NamedTuple):
    """The roles of a process: answer requests, execute operations, or both."""

    api: bool = True
    worker: bool = True

    @property
    def whole(self) -> bool:
        return self.api and self.worker


def check(config: Config, roles: Roles) -> None:
    """Check settings that this release does not support. Raises CannotStart."""
    from kilonova.http.origin import parse_proxies

    if config.driver not in DRIVERS:
        raise CannotStart(f"driver: {config.driver!r} is not one of {', '.join(DRIVERS)}")
    if config.driver == "libvirt" and roles.worker and not roles.whole:
        raise CannotStart("a worker runs no real guests itself: run `kilonova agent --driver libvirt` on each host")
    if not roles.whole and not config.database.startswith(("postgresql://", "postgres://")):
        raise CannotStart(
            "separate API and worker processes need PostgreSQL: give --database postgresql://…, or run `kilonova up`"
        )
    if (config.data_dir / datadir.RESTORING).exists():
        raise CannotStart(f"a restore into {config.data_dir} is not finished: run `kilonova restore --force` again")
    if not 0 <= config.port <= 65535:
        raise CannotStart(f"port: {config.port} is not between 0 and 65535")
    if not 0 <= (config.placement.port or 0) <= 65535:
        raise CannotStart(f"placement.port: {config.placement.port} is not between 0 and 65535")
    if not 0 <= config.delays.milliseconds < math.inf:
        raise CannotStart(f"delays.milliseconds: {config.delays.milliseconds} is not a number of milliseconds")
    if config.sim.hosts < 0:
        raise CannotStart(f"sim.hosts: {config.sim.hosts} is less than 0")
    if config.tls_key and not config.tls_cert:
        raise CannotStart("tls_key is set without tls_cert; set both")
    if config.tls and config.tls_cert:
        raise CannotStart("tls creates a certificate of its own, and tls_cert is another one; set one of them")
    try:
        parse_proxies(tuple(config.trusted_proxies))
    except ValueError as error:
        raise CannotStart(f"trusted_proxies: {error}") from None
    _check_api(config.api)
    _check_companions(config)
    if not config.insecure and (problems := unencrypted(config, roles)):
        raise CannotStart("\n".join(problems))


def _check_companions(config: Config) -> None:
    identity = config.identity
    urls = {"identity.auth_url": identity.auth_url}
    urls |= {f"{name}.url": getattr(config, name).url for name in ("image", "network", "volume", "share")}
    for setting, url in urls.items():
        if url and not _is_url(url) and (setting == "identity.auth_url" or url != BUILT_IN):
            raise CannotStart(f"{setting}: {url!r} is not an http:// or https:// URL")
    if identity.auth_url and not identity.password:
        raise CannotStart(f"identity.password: Kilonova logs in as {identity.username} at identity.auth_url; set it")
    if not 0 <= identity.token_cache_seconds <= MAX_TOKEN_CACHE_SECONDS:
        raise CannotStart(
            f"identity.token_cache_seconds: {identity.token_cache_seconds} is not between 0 and"
            f" {MAX_TOKEN_CACHE_SECONDS:.0f}"
        )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or the address is malformed
        return False


def check_machine(config: Config) -> None:
    """Check that this machine can run real guests, which may take as long as its libvirt. Raises CannotStart."""
    from kilonova.hosts.drivers.libvirt.preflight import missing

    if problems := missing(config):
        raise CannotStart("\n".join(problems))


def unencrypted(config: Config, roles: Roles) -> list[str]:
    from kilonova.encryption import problems_of_cloud

    has_guests = config.driver == "libvirt" and roles.whole
    return problems_of_cloud(config, api=roles.api, worker=roles.worker, host=has_guests)


def _check_api(api: Api) -> None:
    for name in (
        *("max_connections", "max_connections_per_address"),
        *("requests_per_second_per_user", "requests_per_second_per_address"),
    ):
        if not 0 <= getattr(api, name) < math.inf:
            raise CannotStart(f"api.{name}: {getattr(api, name)} is not a number from 0 on")
