"""The container of a process's parts. Request handlers and operation steps use it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kilonova.telemetry.audit import AuditLog
from kilonova.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from kilonova.compute.quotas.unified_limits import UnifiedLimits
    from kilonova.compute.status import ComputeStatus
    from kilonova.config import Config
    from kilonova.hosts.transport import Transport
    from kilonova.http.rate_limits import RateLimits
    from kilonova.identity.client import IdentityClient
    from kilonova.identity.login_brake import LoginBrake
    from kilonova.identity.token_keys import KeyRing
    from kilonova.image.client import ImageClient
    from kilonova.image.tickets import ImageTicket
    from kilonova.network.client import NetworkClient
    from kilonova.policy import Policy
    from kilonova.policy.credentials import Credentials
    from kilonova.scheduler import Scheduler
    from kilonova.share.client import ShareClient
    from kilonova.store import Database
    from kilonova.tickets import Tickets
    from kilonova.volume.client import VolumeClient
    from kilonova.volume.compute_client import ComputeClient


class TokenValidator(Protocol):
    async def validate(self, token: str) -> Credentials | None: ...

    async def validate_expired(self, token: str) -> Credentials | None:
        """Validate a token that may have expired, for a service that finishes work of its user."""


class Services:
    """Filled by `kilonova.process` at start. A process without a part does not set its attribute."""

    config: Config
    # The first path segments of the APIs served here.
    mounts: frozenset[str]
    db: Database
    policy: Policy
    tokens: TokenValidator
    identity: IdentityClient
    image: ImageClient
    # What hosts get instead of tokens.
    image_tickets: Tickets[ImageTicket]
    network: NetworkClient
    volume: VolumeClient
    share: ShareClient
    # For events that the built-in volume service sends to compute.
    compute: ComputeClient
    hosts: Transport
    # For the built-in image, volume and network services, which do not read compute's tables.
    compute_status: ComputeStatus
    scheduler: Scheduler

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.audit = AuditLog()
        # By subnet, the slot of the address that the built-in network service proposes next.
        self.address_cursors: dict[str, int] = {}
        # Running probes by host, which operations share.
        self.probes: dict[str, asyncio.Task[bool]] = {}
        # Guests that belong to no server, by host, from the reports that this process received.
        self.unknown_guests: dict[str, frozenset[str]] = {}
        # Created by the first request and the first login.
        self.rate_limits: RateLimits | None = None
        self.login_brake: LoginBrake | None = None
        # Encrypt stored credentials; None if the configuration lacks them.
        self.credential_keys: KeyRing | None = None
        # Limits of projects in Keystone. Created by the first request that needs them.
        self.unified_limits: UnifiedLimits | None = None
        # Limits concurrent copies of volumes. Created by the first copy.
        self.copy_slots: asyncio.Semaphore | None = None
