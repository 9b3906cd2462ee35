"""Checks passwords of requests, with the brake on failed logins. The audit log has the reason of each refusal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from kilonova.http import Context
from kilonova.http.errors import HttpError, Unauthorized
from kilonova.identity import passwords
from kilonova.identity.login_brake import LoginBrake

# One message for every reason, so that callers cannot find out which users, projects or domains exist.
REFUSED = "The request you have made requires authentication."


class LoginRefused(Unauthorized):
    """`reason` is for the audit log; the caller does not see it."""

    def __init__(self, reason: str) -> None:
        super().__init__(REFUSED)
        self.reason = reason


async def check_password(
    ctx: Context, user: Hashable, password: str, stored: str | None, *, of: tuple[str, str] = ("user", "password")
) -> None:
    """Raises LoginRefused, TooManyRequests or Unavailable. `user` is what the request names.

    `of` are the words for it and its password in the audit log: an application credential has a secret instead.
    Services of this process have no address. Neither the brake nor the queue of clients applies to them.
    """
    address = ctx.origin.address
    if not address:
        if not await passwords.verify_password(password, stored, of_service=True):
            raise _refusal(stored, of)
        return
    brake = ctx.services.login_brake = ctx.services.login_brake or LoginBrake()
    brake.check(user, address)
    if not await passwords.verify_password(password, stored):
        brake.count_failure(user, address)
        raise _refusal(stored, of)
    brake.count_success(user, address)


@contextmanager
def audited_refusals(ctx: Context) -> Iterator[None]:
    """Give the audit log the reason of an error, of which the caller sees only REFUSED."""
    try:
        yield
    except HttpError as error:
        ctx.audit["reason"] = error.reason if isinstance(error, LoginRefused) else error.message
        raise


def _refusal(stored: str | None, of: tuple[str, str]) -> LoginRefused:
    return LoginRefused(f"unknown {of[0]}" if stored is None else f"wrong {of[1]}")
