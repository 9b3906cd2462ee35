"""Tokens of requests: a service may finish work of a user whose token has expired."""

from __future__ import annotations

import pytest
from msgspec import structs

from kilonova.http import Api
from kilonova.http.authentication import validate_token
from kilonova.identity import build as build_identity
from kilonova.policy.credentials import AccessRule, Credentials
from kilonova.services import Services
from tests.http.toy import toy_fault
from tests.support import run
from tests.support.cloud import TOKENS


class Tokens:
    """Users' tokens have expired; tokens of services are valid."""

    async def validate(self, token: str) -> Credentials | None:
        if token == "restricted":
            rule = AccessRule("", "compute", "GET", "**")
            return structs.replace(TOKENS["service"], access_rules=(rule,))
        return TOKENS["service"] if token == "service" else TOKENS.get(token) if token == "manager" else None

    async def validate_expired(self, token: str) -> Credentials | None:
        return TOKENS.get(token)


@pytest.mark.parametrize(
    ("headers", "user"),
    [
        ({"x-auth-token": "member", "x-service-token": "service"}, "member"),
        ({"x-auth-token": "member"}, None),
        ({"x-auth-token": "member", "x-service-token": "manager"}, None),
        ({"x-auth-token": "member", "x-service-token": "garbage"}, None),
        ({"x-auth-token": "member", "x-service-token": "restricted"}, None),
        ({"x-auth-token": "garbage", "x-service-token": "service"}, None),
        ({"x-service-token": "service"}, None),
        ({"x-auth-token": "manager"}, "manager"),
    ],
)
def test_expired_token_is_valid_beside_that_of_a_service(headers: dict[str, str], user: str | None) -> None:
    services = Services()
    services.tokens = Tokens()
    api = Api("toy", prefix="/toy", errors=toy_fault)
    found = run(validate_token(services, headers, api))
    assert (found and found.user_name) == user


def test_expired_token_gets_no_credentials() -> None:
    services = Services()
    services.tokens = Tokens()
    headers = {"x-auth-token": "member", "x-service-token": "service"}
    assert run(validate_token(services, headers, build_identity())) is None
