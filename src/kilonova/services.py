"""The parts of one process, by name. Handlers and steps reach everything through here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kilonova.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.hosts.transport import Transport
    from kilonova.identity.client import IdentityClient
    from kilonova.identity.token import Token
    from kilonova.image.client import ImageClient
    from kilonova.network.client import NetworkClient
    from kilonova.policy import Policy
    from kilonova.scheduler import Scheduler
    from kilonova.store import Database
    from kilonova.volume.client import VolumeClient
    from kilonova.volume.compute import ComputeClient


class TokenValidator(Protocol):
    async def validate(self, token: str) -> Token | None: ...


class Services:
    """Filled once at start by `kilonova.process`; a process that lacks a part does not set it."""

    config: Config
    # The first path segments of the APIs served here.
    mounts: frozenset[str]
    db: Database
    policy: Policy
    tokens: TokenValidator
    identity: IdentityClient
    image: ImageClient
    network: NetworkClient
    volume: VolumeClient
    # How the built-in volume service tells compute of what it did.
    compute: ComputeClient
    hosts: Transport
    scheduler: Scheduler

    def __init__(self) -> None:
        self.metrics = Metrics()
