"""Calls services beside this cloud, as the service user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from kilonova import datadir
from kilonova.certificates import UnusableCertificate, client_context
from kilonova.companions import caller_of, make_identity_client
from kilonova.config import Config
from kilonova.doctor.facts import Unavailable
from kilonova.http.client import Caller, Refused, Remote, Unreachable
from kilonova.identity.catalog_caller import CatalogCaller
from kilonova.identity.client import Auth, IdentityClient, IdentityError, base_url
from kilonova.identity.seed import SERVICE_USER


@asynccontextmanager
async def reading(config: Config, service: str) -> AsyncIterator[tuple[Caller, Auth]]:
    """Yields a caller of the service, and a token of the service user.

    Errors, also those of the block, are raised as Unavailable.
    """
    try:
        identity = _identity_client(config)
        caller = caller_of(service, config, identity, None)
        try:
            yield caller, await identity.auth()
        finally:
            await identity.close()
            if isinstance(caller, Remote | CatalogCaller):
                await caller.close()
    except (UnusableCertificate, IdentityError, Refused, Unreachable) as error:
        raise Unavailable(str(error)) from None


def _identity_client(config: Config) -> IdentityClient:
    """Logs in at a real Keystone, or at the built-in identity service of the cloud, which then must be running."""
    if not config.is_built_in("identity"):
        return make_identity_client(config, None, "")
    try:
        endpoints = orjson.loads((config.data_dir / datadir.ENDPOINTS).read_bytes())
        password = datadir.load_passwords(config.data_dir, [SERVICE_USER])[SERVICE_USER]
        url = base_url(endpoints["identity"])
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"no running cloud in {config.data_dir}: {error}") from None
    tls = client_context(endpoints.get(datadir.CACERT), f"{datadir.ENDPOINTS}: {datadir.CACERT}")
    return make_identity_client(config, Remote(url, tls=tls), password)
