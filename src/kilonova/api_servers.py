"""The HTTP servers of a process: the APIs on one port, and placement on another. Tells clients how to reach them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kilonova import datadir
from kilonova.identity.client import base_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kilonova.certificates import ServerCertificate
    from kilonova.config import Config
    from kilonova.http import App
    from kilonova.http.connections import ConnectionLimits
    from kilonova.http.server import Server
    from kilonova.reload import Reloads

# Services in `endpoints.json`, with their paths.
ENDPOINTS = {
    "identity": "/identity/v3",
    "compute": "/compute/v2.1",
    "placement": "/placement",
    "image": "/image/v2",
    "volume": "/volume/v3",
    "network": "/network/v2.0",
    "share": "/share/v2",
}
_DOMAINS = {"user_domain_name": "Default", "project_domain_name": "Default"}
# Each cloud's `auth` in clouds.yaml, without password and URL.
CLOUDS: dict[str, dict[str, str]] = {
    "kilonova": {"username": "admin", "project_name": "admin", **_DOMAINS},
    "kilonova-system": {"username": "admin", "user_domain_name": "Default", "system_scope": "all"},
    "kilonova-demo": {"username": "demo", "project_name": "demo", **_DOMAINS},
    "kilonova-demo-admin": {"username": "demo-admin", "project_name": "demo", **_DOMAINS},
    "kilonova-demo-manager": {"username": "demo-manager", "project_name": "demo", **_DOMAINS},
    "kilonova-demo-reader": {"username": "demo-reader", "project_name": "demo", **_DOMAINS},
}


class ApiServers:
    """`endpoints` are the public URLs by service, and `clouds` is the path of clouds.yaml, once started."""

    def __init__(self, config: Config, reloads: Reloads) -> None:
        """Raises UnusableCertificate."""
        self._config = config
        self._servers: list[Server] = []
        self._authority = str(Path(config.tls_ca).absolute()) if config.tls_ca else ""
        self._certificate: ServerCertificate | None = None
        # Of all servers together.
        self._limits: ConnectionLimits | None = None
        self.endpoints: dict[str, str] = {}
        self.clouds: Path | None = None
        if config.tls or config.tls_cert:
            from kilonova.certificates import ServerCertificate

            self._certificate = ServerCertificate(*self._certificate_files())
            reloads.add("TLS certificate", self._reload_certificate)

    def _certificate_files(self) -> tuple[Path, Path]:
        """The configured files, or those of the own authority, which renews them if necessary."""
        config = self._config
        if config.tls_cert:
            return Path(config.tls_cert), Path(config.tls_key or config.tls_cert)
        from kilonova.authority import ensure_certificate

        own = ensure_certificate(config.data_dir, _server_names(config))
        self._authority = self._authority or str(own.authority)
        return own.certificate, own.key

    def _reload_certificate(self) -> None:
        assert self._certificate is not None
        self._certificate_files()
        self._certificate.reload()

    async def start(self, app: App, bound: socket.socket, passwords: Mapping[str, str]) -> None:
        """Serve, then write the files for clients. `passwords` are those of users, if known. Raises CannotListen."""
        from kilonova.http.connections import limits_of

        config = self._config
        self._limits = limits_of(config.api)
        local_url = await self._serve(app, bound)
        base = config.public_url.rstrip("/") or local_url
        urls = {
            name: base + path
            for name, path in ENDPOINTS.items()
            if name in ("compute", "placement") or config.serves(name)
        }
        if config.placement.port is not None:
            urls["placement-root"] = await self._serve_placement(app, config.placement.port, base)
        auth_url = urls.get("identity") or f"{base_url(config.identity.auth_url)}/v3"
        self.endpoints = {"auth_url": auth_url, **urls}
        directory, region = config.data_dir, config.identity.region
        clouds = _clouds(config, passwords)
        authority = self._authority if config.is_built_in("identity") else config.identity.ca_file
        self.clouds = datadir.write_clouds(directory, auth_url, region, clouds, authority)
        datadir.write_endpoints(directory, self.endpoints, self._authority)

    async def _serve_placement(self, app: App, port: int, site_url: str) -> str:
        """Serve placement at the root of its own port as well, as many tools expect."""
        from kilonova.http.server import listen

        root = type(app).at_root(app.services, app.apis["placement"], site_url)
        return await self._serve(root, listen(self._config.host, port, "--placement-port"))

    async def _serve(self, app: App, bound: socket.socket) -> str:
        """Start a server, and return its URL for clients on this machine."""
        from kilonova.http.cors import allow_origins
        from kilonova.http.server import Server, socket_url

        context = self._certificate.context if self._certificate is not None else None
        server = Server(allow_origins(app, self._config.cors), bound, context, self._limits)
        await server.start()
        self._servers.append(server)
        return socket_url(bound, "http" if context is None else "https")

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self._servers))


def _clouds(config: Config, passwords: Mapping[str, str]) -> dict[str, tuple[dict[str, str], str | None]]:
    """The clouds of clouds.yaml with their passwords. Users of a real Keystone are known there, but for our own."""
    identity = config.identity
    if config.is_built_in("identity"):
        return {name: (auth, passwords.get(auth["username"])) for name, auth in CLOUDS.items()}
    login = {
        "username": identity.username,
        "user_domain_name": identity.user_domain_name,
        "project_name": identity.project_name,
        "project_domain_name": identity.project_domain_name,
    }
    return {"kilonova": (login, identity.password)}


def _server_names(config: Config) -> list[str]:
    """Names and addresses by which clients may reach this process."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if config.host in ("0.0.0.0", "::", ""):
        names += _own_addresses()
    else:
        names.append(config.host)
    names += [urlsplit(url).hostname or "" for url in (config.public_url, config.console.url)]
    return list(dict.fromkeys(filter(None, names)))


def _own_addresses() -> list[str]:
    """The addresses that this machine's name resolves to."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for *_, address in found if "%" not in str(address[0])]
