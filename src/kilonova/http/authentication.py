"""Validates the tokens of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http.api import Api
    from kilonova.policy.credentials import Credentials
    from kilonova.services import Services


async def validate_token(services: Services, headers: Mapping[str, str], api: Api) -> Credentials | None:
    """The caller's credentials; None without a valid token.

    A service may finish work of a user whose token has expired, but get no new credentials with it.
    """
    token = headers.get("x-auth-token")
    if not token:
        return None
    validated = await services.tokens.validate(token)
    if validated is None and api.accepts_expired_tokens and await is_sent_by_service(services, headers):
        return await services.tokens.validate_expired(token)
    return validated


async def is_sent_by_service(services: Services, headers: Mapping[str, str]) -> bool:
    """Whether the request has the token of a service beside that of its user."""
    text = headers.get("x-service-token")
    service = await services.tokens.validate(text) if text else None
    return service is not None and "service" in service.roles and service.access_rules is None
