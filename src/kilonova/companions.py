"""The services beside compute: built in, at a configured URL, or in Keystone's catalogue. Creates their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.certificates import client_context
from kilonova.http.client import InProcess, Remote
from kilonova.identity.catalog_caller import CatalogCaller, without_version
from kilonova.identity.client import IdentityClient, base_url
from kilonova.identity.seed import SERVICE_USER
from kilonova.identity.service_caller import ServiceCaller

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from kilonova.config import Config
    from kilonova.http import App
    from kilonova.http.client import Caller
    from kilonova.services import Services

# Types in the catalogue, the preferred one first.
SERVICE_TYPES = {
    "image": ("image",),
    "network": ("network",),
    "volume": ("block-storage", "volumev3", "block-store"),
    "share": ("shared-file-system", "sharev2"),
}


def make_identity_client(config: Config, built_in: Caller | None, password: str) -> IdentityClient:
    """The client of the service user. Without a real Keystone, it logs in at `built_in` with the password.

    Raises UnusableCertificate.
    """
    settings = config.identity
    if config.is_built_in("identity"):
        assert built_in is not None
        return IdentityClient(built_in, username=SERVICE_USER, password=password, region=settings.region)
    return IdentityClient(
        Remote(base_url(settings.auth_url), tls=client_context(settings.ca_file, "identity.ca_file")),
        username=settings.username,
        password=settings.password,
        project=settings.project_name,
        user_domain=settings.user_domain_name,
        project_domain=settings.project_domain_name,
        region=settings.region,
        interface=settings.interface,
    )


def caller_of(service: str, config: Config, identity: IdentityClient, built_in: Caller | None) -> Caller:
    """Calls the service without a version in the base URL. Raises UnusableCertificate."""
    if config.is_built_in(service):
        assert built_in is not None
        return built_in
    settings = getattr(config, service)
    tls = client_context(settings.ca_file, f"{service}.ca_file")
    if settings.url:
        return Remote(without_version(settings.url), tls=tls)
    return CatalogCaller(identity, SERVICE_TYPES[service], tls)


def make_clients(
    services: Services, app: App, password: str, delayed: Callable[[Caller], Caller], stack: AsyncExitStack
) -> None:
    """Create the clients of a process. They use the public APIs even where a service is in this process.

    The stack closes their connections. Raises UnusableCertificate.
    """
    from kilonova.image.client import ImageClient
    from kilonova.network.client import NetworkClient
    from kilonova.share.client import ShareClient
    from kilonova.volume.client import VolumeClient
    from kilonova.volume.compute_client import ComputeClient

    config = services.config
    identity = make_identity_client(config, delayed(InProcess(app, "/identity")), password)
    services.identity = identity
    stack.push_async_callback(identity.close)

    def client_caller(service: str) -> Caller:
        found = caller_of(service, config, identity, InProcess(app, f"/{service}"))
        if isinstance(found, Remote | CatalogCaller):
            stack.push_async_callback(found.close)
        return ServiceCaller(delayed(found), identity, always=not config.is_built_in(service))

    services.image = ImageClient(client_caller("image"), is_glance=not config.is_built_in("image"))
    services.network = NetworkClient(client_caller("network"), built_in=config.is_built_in("network"))
    services.volume = VolumeClient(client_caller("volume"))
    services.share = ShareClient(client_caller("share"))
    services.compute = ComputeClient(ServiceCaller(delayed(InProcess(app, "/compute")), identity))
