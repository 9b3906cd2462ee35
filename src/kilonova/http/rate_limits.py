"""Limits how often clients may do something: token buckets, and the limits of requests per address and per user."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from kilonova.http.errors import TooManyRequests
from kilonova.http.origin import group_of

if TYPE_CHECKING:
    from kilonova.config import Api
    from kilonova.policy.credentials import Credentials
    from kilonova.services import Services

# How many buckets a table has. Clients choose the keys, so the table must not grow with them.
MAX_BUCKETS = 65536
# A client that was idle may send the requests of so many seconds at once.
BURST_SECONDS = 10.0


class Buckets:
    """A token bucket per key. The least recently used bucket makes room for a new one.

    Keys are stored as hashes, because clients may choose long ones.
    """

    def __init__(
        self,
        burst: float,
        per_second: float,
        *,
        size: int = MAX_BUCKETS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._size = size
        self._now = now
        # By hash of the key: how much was left, and when.
        self._buckets: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, key: Hashable) -> float:
        """Seconds until the bucket has one token; 0 if it has one now."""
        left = self._left(self._buckets.get(hash(key)))
        return max(0.0, (1 - left) / self._per_second)

    def take(self, key: Hashable) -> None:
        """Take one token. The bucket may owe tokens afterwards."""
        hashed = hash(key)
        left = self._left(self._buckets.pop(hashed, None))
        if len(self._buckets) >= self._size:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[hashed] = left - 1, self._now()

    def fill(self, key: Hashable) -> None:
        """Make the bucket full again."""
        self._buckets.pop(hash(key), None)

    def _left(self, bucket: tuple[float, float] | None) -> float:
        if bucket is None:
            return self._burst
        left, since = bucket
        return min(self._burst, left + (self._now() - since) * self._per_second)


class RateLimits:
    """Limits of requests. By default there are none."""

    def __init__(self, settings: Api) -> None:
        self.by_address = _buckets(settings.requests_per_second_per_address)
        self.by_user = _buckets(settings.requests_per_second_per_user)

    def count_address(self, address: str) -> None:
        """Count a request of a client. Raises TooManyRequests. This process's own requests have no address."""
        if self.by_address is not None and address:
            _count(self.by_address, group_of(address), "address")

    def count_user(self, address: str, token: Credentials) -> None:
        """Count a request of a user in a project, with whichever token. Raises TooManyRequests."""
        if self.by_user is not None and address:
            _count(self.by_user, (token.user_id, token.project_id, token.domain_id, token.system), "user")


def rate_limits_of(services: Services) -> RateLimits:
    """The limits of the process, which its first request creates."""
    if services.rate_limits is None:
        services.rate_limits = RateLimits(services.config.api)
    return services.rate_limits


def refuse_until(seconds: float, message: str) -> TooManyRequests:
    return TooManyRequests(message, headers={"Retry-After": str(math.ceil(seconds))})


def _buckets(per_second: float) -> Buckets | None:
    return Buckets(max(1.0, per_second * BURST_SECONDS), per_second) if per_second > 0 else None


def _count(buckets: Buckets, key: Hashable, noun: str) -> None:
    if seconds := buckets.wait(key):
        raise refuse_until(seconds, f"Too many requests of this {noun}; try again in {math.ceil(seconds)} seconds.")
    buckets.take(key)
