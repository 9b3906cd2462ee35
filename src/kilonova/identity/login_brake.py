"""Slows down attempts to guess passwords, in the memory of one process.

Failed logins are counted per user and address, per address, and per user. Each count allows some failures, and then a
new attempt after a while. Nobody is locked out for ever:

- An attacker at one address exhausts the counts of that address. Users log in from other addresses as before.
- An attacker at many addresses exhausts the count of the user. It does not apply to addresses from which the user has
  logged in since the start of the process. From a new address the user competes with the attacker for attempts.

A user counts as given in the request, before it is looked up. So the counts do not tell which users exist.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

from kilonova.http.origin import group_of
from kilonova.http.rate_limits import MAX_BUCKETS, Buckets, refuse_until

# How many failures are allowed, and after how many seconds another one.
OF_USER_AND_ADDRESS = (10, 30.0)
OF_ADDRESS = (100, 3.0)
OF_USER = (100, 3.0)


class LoginBrake:
    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        def buckets(failures: int, seconds: float) -> Buckets:
            return Buckets(failures, 1 / seconds, now=now)

        self._of_user_and_address = buckets(*OF_USER_AND_ADDRESS)
        self._of_address = buckets(*OF_ADDRESS)
        self._of_user = buckets(*OF_USER)
        # Hashes of users with an address from which they have logged in; the least recent is first.
        self._known: dict[int, None] = {}

    def check(self, user: Hashable, address: str) -> None:
        """Raises TooManyRequests if too many logins have failed."""
        group = group_of(address)
        seconds = max(self._of_user_and_address.wait((user, group)), self._of_address.wait(group))
        if hash((user, group)) not in self._known:
            seconds = max(seconds, self._of_user.wait(user))
        if seconds:
            raise refuse_until(seconds, "Too many failed logins; try again later.")

    def count_failure(self, user: Hashable, address: str) -> None:
        group = group_of(address)
        self._of_user_and_address.take((user, group))
        self._of_address.take(group)
        if hash((user, group)) not in self._known:
            self._of_user.take(user)

    def count_success(self, user: Hashable, address: str) -> None:
        key = (user, group_of(address))
        self._of_user_and_address.fill(key)
        self._known.pop(hash(key), None)
        if len(self._known) >= MAX_BUCKETS:
            del self._known[next(iter(self._known))]
        self._known[hash(key)] = None
