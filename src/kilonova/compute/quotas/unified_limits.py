"""Limits of projects in Keystone: registered limits are the defaults, limits are those of single projects."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kilonova import clock
from kilonova.http.client import Unreachable, valid_response
from kilonova.http.errors import Unavailable
from kilonova.identity.client import IdentityError
from kilonova.unified_limits import LIMIT_NAMES, SERVICE_TYPE

if TYPE_CHECKING:
    from kilonova.config import Quota
    from kilonova.identity.client import IdentityClient

log = logging.getLogger(__name__)

# How many projects the cache has at most.
CACHE_SIZE = 1000
RETRY_AFTER_SECONDS = 5
UNLIMITED = -1

Limits = dict[str, int]


class ProjectLimits(NamedTuple):
    """The limits of a project by their names in Keystone. A resource without a limit has that of the settings."""

    registered: Mapping[str, int]
    of_project: Mapping[str, int]
    settings: Quota

    def limit(self, name: str) -> int:
        return self.of_project[name] if name in self.of_project else self.default(name)

    def default(self, name: str) -> int:
        if name in self.registered:
            return self.registered[name]
        is_listed = name in self.settings.unified_limits_resource_list
        return 0 if is_listed == (self.settings.unified_limits_resource_strategy == "require") else UNLIMITED

    def limits_of_api(self) -> dict[str, int]:
        """By the names of compute's API."""
        return {resource: self.limit(name) for resource, name in LIMIT_NAMES.items()}

    def defaults_of_api(self) -> dict[str, int]:
        return {resource: self.default(name) for resource, name in LIMIT_NAMES.items()}


class UnifiedLimits:
    """Reads limits with the token of the service user, and keeps them for some seconds, and while Keystone is down."""

    def __init__(self, identity: IdentityClient, settings: Quota) -> None:
        self._identity = identity
        self._settings = settings
        seconds = settings.unified_limits_cache_seconds
        self._registered = _Cache(self._read_registered, seconds, 1)
        self._of_projects = _Cache(self._read_project, seconds, CACHE_SIZE)

    async def of(self, project_id: str) -> ProjectLimits:
        """The limits of the project. Raises Unavailable if they cannot be read and are not known."""
        registered, of_project = await asyncio.gather(self._registered.get(""), self._of_projects.get(project_id))
        return ProjectLimits(registered, of_project, self._settings)

    async def _read_registered(self, _: str) -> Limits:
        return await self._read("registered_limits", "default_limit", {})

    async def _read_project(self, project_id: str) -> Limits:
        if not _PROJECT_ID.fullmatch(project_id):
            return {}  # such as the empty id of a token for the system, which Keystone refuses
        # A service user that may not see all limits would get those of its own project.
        return await self._read("limits", "resource_limit", {"project_id": project_id})

    async def _read(self, collection: str, value: str, query: Mapping[str, str]) -> Limits:
        """Limits for the region of this cloud take precedence over those for all regions."""
        service_id, region = await self._identity.service(SERVICE_TYPE), self._identity.region
        found = await self._identity.list(collection, {"service_id": service_id, **query})
        with valid_response("identity"):
            relevant = [item for item in found if all(item[key] == wanted for key, wanted in query.items())]
            general = {item["resource_name"]: int(item[value]) for item in relevant if not item["region_id"]}
            own = {item["resource_name"]: int(item[value]) for item in relevant if item["region_id"] == region}
        return general | own


_PROJECT_ID = re.compile(r"[a-zA-Z0-9-]+")


class _Entry(NamedTuple):
    value: Limits
    read_again_at: float


class _Cache:
    """Many requests for one key read it once. A value that cannot be read again goes on."""

    def __init__(self, read: Callable[[str], Awaitable[Limits]], seconds: float, size: int) -> None:
        self._read = read
        self._seconds = seconds
        self._size = size
        self._known: dict[str, _Entry] = {}
        self._pending: dict[str, asyncio.Task[Limits]] = {}

    async def get(self, key: str) -> Limits:
        known = self._known.get(key)
        if known is not None and clock.now() < known.read_again_at:
            return known.value
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._renew(key))
            task.add_done_callback(lambda done: self._pending.pop(key, None))
        return await asyncio.shield(task)

    async def _renew(self, key: str) -> Limits:
        try:
            value = await self._read(key)
        except (Unreachable, IdentityError) as error:
            known = self._known.get(key)
            log.warning("unified limits cannot be read%s: %s", "" if known else ", and are not known", error)
            if known is None:
                raise Unavailable(
                    "The limits of the project are not available at the moment; try again.",
                    headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
                ) from None
            value = known.value
        self._known.pop(key, None)  # the oldest entry is first
        if len(self._known) >= self._size:
            del self._known[next(iter(self._known))]
        self._known[key] = _Entry(value, clock.now() + self._seconds)
        return value
