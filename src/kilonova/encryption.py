"""Finds settings by which data would cross a network without encryption. A process with such settings does not start.

Loopback needs no encryption. The setting `insecure` allows the rest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from kilonova.config import Config, Messaging


class Problem(NamedTuple):
    """`instead`: the settings that encrypt the connection or keep it on this machine."""

    setting: str
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.found} without encryption; set {self.instead}, or insecure = true to allow it"


def problems_of_cloud(config: Config, *, api: bool, worker: bool, host: bool) -> list[str]:
    """One line for each setting of a control-plane process. `host`: it also runs guests."""
    found = [*_messaging(config.messaging), *_other_services(config)]
    if api:
        found += _api(config)
    if worker:
        found += _volume_exports(config)
    if host:
        found += _host(config)
    return list(map(str, found))


def problems_of_agent(config: Config) -> list[str]:
    """One line for each setting of an agent."""
    instead = "an https:// URL (and agent.image_ca_file, if its authority is your own)"
    found = [
        *_messaging(config.messaging),
        *_url("agent.image_url", config.agent.image_url, "images come from", instead),
    ]
    if config.driver == "libvirt":
        found += _host(config)
    return list(map(str, found))


def problems_of_registration(urls: Mapping[str, str]) -> list[str]:
    """One line for each URL of an identity service, by setting, to which passwords are sent."""
    instead = "an https:// URL (and the file of its authority, if it is your own)"
    return [str(found) for setting, url in urls.items() for found in _url(setting, url, "passwords go to", instead)]


def uses_tls(messaging: Messaging) -> bool:
    """Whether the settings ask for TLS. If so, the process uses no NATS server without it."""
    schemes = {url.partition("://")[0].strip() for url in messaging.url.split(",")}
    return bool(messaging.ca_file or messaging.cert_file or schemes & {"tls", "wss"})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than `localhost` may mean any address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _messaging(messaging: Messaging) -> Iterator[Problem]:
    if not messaging.url or uses_tls(messaging):
        return
    instead = "a tls:// URL (and messaging.ca_file, if its authority is your own)"
    for url in messaging.url.split(","):
        server = _without_user(url.strip().rpartition("://")[2])
        if not is_loopback(urlsplit(f"//{server}").hostname or ""):
            yield Problem("messaging.url", f"commands to hosts go to {server}", instead)


def _api(config: Config) -> Iterator[Problem]:
    if not (config.tls or config.tls_cert or is_loopback(config.host)):
        instead = "tls_cert and tls_key (or --tls to try it), or host = 127.0.0.1 behind a proxy on this machine"
        yield Problem("host", f"the APIs listen on {config.host}", instead)
    yield from _url("public_url", config.public_url, "clients send tokens to", "an https:// URL")
    yield from _url("console.url", config.console.url, "browsers open consoles at", "an https:// URL")


def _other_services(config: Config) -> Iterator[Problem]:
    settings = {"identity.auth_url": config.identity.auth_url}
    settings |= {f"{name}.url": getattr(config, name).url for name in ("image", "network", "volume", "share")}
    for setting, url in settings.items():
        section = setting.partition(".")[0]
        instead = f"an https:// URL (and {section}.ca_file, if its authority is your own)"
        yield from _url(setting, url, "tokens go to", instead)


def _volume_exports(config: Config) -> Iterator[Problem]:
    volume = config.volume
    if config.is_built_in("volume") and not (volume.nbd_tls or is_loopback(volume.nbd_address)):
        yield Problem("volume.nbd_address", f"volumes are exported on {volume.nbd_address}", "volume.nbd_tls")


def _host(config: Config) -> Iterator[Problem]:
    agent, libvirt = config.agent, config.libvirt
    if config.messaging.url and not (agent.cert_file or is_loopback(agent.address)):
        instead = "agent.ca_file, agent.cert_file and agent.key_file"
        yield Problem("agent.address", f"disks of guests are served on {agent.address}", instead)
    uri = libvirt.migration_uri
    uri_host = agent.address if "{address}" in uri else urlsplit(uri).hostname or ""
    if "+tcp:" in uri and not is_loopback(uri_host):
        instead = "qemu+tls://{address}/system or qemu+ssh://{address}/system"
        yield Problem("libvirt.migration_uri", f"hosts control libvirt on {uri_host}", instead)
    migration_address = libvirt.migration_address or agent.address
    if not (libvirt.migration_tls or is_loopback(migration_address)):
        yield Problem("libvirt.migration_tls", f"guests migrate to {migration_address}", "it to true")


def _url(setting: str, url: str, what: str, instead: str) -> Iterator[Problem]:
    parts = urlsplit(url)
    if parts.scheme in ("http", "ws") and not is_loopback(parts.hostname or ""):
        yield Problem(setting, f"{what} {_without_user(parts.netloc)}", instead)


def _without_user(location: str) -> str:
    return location.rpartition("@")[2]
