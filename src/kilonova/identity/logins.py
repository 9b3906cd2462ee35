"""Checks passwords of requests: with the brake on failed logins, and with a line in the log for each refusal."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from kilonova.http import Context
from kilonova.http.errors import HttpError, Unauthorized
from kilonova.identity import passwords
from kilonova.identity.login_brake import LoginBrake

log = logging.getLogger(__name__)

# One message for every reason, so that callers cannot find out which users, projects or domains exist.
REFUSED = "The request you have made requires authentication."


class LoginRefused(Unauthorized):
    """`reason` is for the log; the caller does not see it."""

    def __init__(self, reason: str) -> None:
        super().__init__(REFUSED)
        self.reason = reason


async def check_password(ctx: Context, user: Hashable, password: str, stored: str | None) -> None:
    """Raises LoginRefused, TooManyRequests or Unavailable. `user` is what the request names.

    Services of this process have no address. Neither the brake nor the queue of clients applies to them.
    """
    address = ctx.client_address
    if address is None:
        if not await passwords.verify_password(password, stored, of_service=True):
            raise LoginRefused("unknown user or wrong password")
        return
    brake = ctx.services.login_brake = ctx.services.login_brake or LoginBrake()
    brake.check(user, address)
    if not await passwords.verify_password(password, stored):
        brake.count_failure(user, address)
        raise LoginRefused("unknown user or wrong password")
    brake.count_success(user, address)


def log_refused_login(ctx: Context, user: str, error: HttpError) -> None:
    """Called for every refused login and change of a password. The request may name users that do not exist."""
    reason = error.reason if isinstance(error, LoginRefused) else error.message
    log.warning("login refused", extra={"user": user[:255], "address": ctx.client_address or "", "reason": reason})
