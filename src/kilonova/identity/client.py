"""Client of the identity service, built in or a real Keystone: gets service tokens, validates users' tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from kilonova import clock
from kilonova.http.client import Unreachable
from kilonova.http.errors import Unavailable
from kilonova.identity.token import Token, TokenApplicationCredential, TokenTrust
from kilonova.identity.token_provider import CACHE_SECONDS, CACHE_SIZE, TokenCache
from kilonova.policy.credentials import AccessRule

if TYPE_CHECKING:
    from kilonova.http.client import Caller, ClientResponse

# How long before its expiry a token is renewed, so that requests with it can finish.
RENEW_BEFORE_SECONDS = 300.0
# Without this header the identity service takes tokens with access rules for invalid ones.
ENFORCES_ACCESS_RULES = {"OpenStack-Identity-Access-Rules": "1.0"}


class IdentityError(Exception):
    """The identity service refused a request of this service, or sent an unexpected response."""


def base_url(auth_url: str) -> str:
    """The URL without the version, which the client's paths contain."""
    return auth_url.rstrip("/").removesuffix("/v3")


class Auth(NamedTuple):
    """A token and its project, which some services need in the path."""

    token: str
    project_id: str | None
    # Whether it is the token of a service in its own project, where it has the role `service`.
    is_service: bool = False

    def __repr__(self) -> str:
        # Without the token, because a repr may be logged.
        return f"Auth(project_id={self.project_id!r})"


class IdentityClient:
    """Authenticates as one service user in one project. The caller's base URL has no version."""

    def __init__(
        self,
        caller: Caller,
        *,
        username: str,
        password: str,
        project: str = "service",
        user_domain: str = "Default",
        project_domain: str = "Default",
    ) -> None:
        self._caller = caller
        self._auth = {
            "identity": {
                "methods": ["password"],
                "password": {
                    "user": {"name": username, "domain": {"name": user_domain}, "password": password},
                },
            },
            "scope": {"project": {"name": project, "domain": {"name": project_domain}}},
        }
        self._text = ""
        self._body: dict[str, Any] = {}
        self._renew_at = 0.0
        self._renewing = asyncio.Lock()
        # By project: a token for another project, and when to renew it.
        self._project_tokens: dict[str, tuple[str, float]] = {}

    async def token(self) -> str:
        """The service's own token, renewed in time. Raises Unreachable or IdentityError."""
        if clock.now() >= self._renew_at:
            async with self._renewing:
                if clock.now() >= self._renew_at:
                    await self._renew()
        return self._text

    async def auth(self, project_id: str | None = None) -> Auth:
        """A token of the service user for its own project, or for a project where it creates resources.

        There the user needs a role; a role inherited from the domain is enough. Raises as `token` does.
        """
        text = await self.token()
        own = self._body["project"]["id"]
        if project_id is None or project_id == own:
            return Auth(text, own, is_service=True)
        known = self._project_tokens.get(project_id)
        if known is None or clock.now() >= known[1]:
            known = self._project_tokens[project_id] = await self._get_project_token(text, project_id)
        return Auth(known[0], project_id)

    async def _get_project_token(self, text: str, project_id: str) -> tuple[str, float]:
        if len(self._project_tokens) >= CACHE_SIZE:
            self._project_tokens.clear()
        identity = {"methods": ["token"], "token": {"id": text}}
        auth = {"identity": identity, "scope": {"project": {"id": project_id}}}
        response = await self._caller.request("POST", "/v3/auth/tokens?nocatalog", json={"auth": auth})
        if response.status != 201:
            raise IdentityError(f"the service user may not act in the project {project_id}: it has no role there")
        return response.headers["x-subject-token"], self._renew_at

    def forget(self) -> None:
        """Drop the tokens after one was refused, so that the next call gets new ones."""
        self._renew_at = 0.0
        self._project_tokens.clear()

    async def _renew(self) -> None:
        response = await self._caller.request("POST", "/v3/auth/tokens", json={"auth": self._auth})
        if response.status != 201:
            raise IdentityError(f"the identity service refused the service user: {response.status}")
        self._text = response.headers["x-subject-token"]
        self._body = response.json()["token"]
        lifetime = clock.parse(self._body["expires_at"]) - clock.now()
        self._renew_at = clock.now() + max(lifetime - RENEW_BEFORE_SECONDS, lifetime / 2)

    async def endpoint(self, service_type: str, *, interface: str = "internal", region: str | None = None) -> str:
        """The URL of a service in the catalogue. Raises IdentityError if there is none."""
        await self.token()
        for service in self._body.get("catalog", ()):
            if service["type"] == service_type:
                for found in service["endpoints"]:
                    if found["interface"] == interface and region in (None, found["region_id"]):
                        return str(found["url"])
        raise IdentityError(f"the catalogue has no {interface} endpoint of the type {service_type}")

    async def has_project(self, project_id: str) -> bool:
        """Whether the project exists. True if the service user may not look it up."""
        response = await self._request_project(project_id)
        if response.status == 401:
            self.forget()
            response = await self._request_project(project_id)
        if response.status in (200, 403):
            return True
        if response.status == 404:
            return False
        raise Unreachable(f"the identity service answered {response.status} to the lookup of a project")

    async def _request_project(self, project_id: str) -> ClientResponse:
        try:
            headers = {"X-Auth-Token": await self.token()}
        except IdentityError as error:
            raise Unreachable(str(error)) from None
        return await self._caller.request("GET", f"/v3/projects/{quote(project_id, safe='')}", headers=headers)

    async def validate(self, token: str) -> Token | None:
        """Validate a user's token; None if it is not valid."""
        response = await self._request_validation(token)
        if response.status == 401:
            # The service's own token may be the invalid one: try again with a new one.
            self.forget()
            response = await self._request_validation(token)
        if response.status == 404:
            return None
        if response.status != 200:
            raise IdentityError(f"the identity service answered {response.status} to the validation of a token")
        return parse_token(response.json()["token"])

    async def _request_validation(self, token: str) -> ClientResponse:
        headers = {"X-Auth-Token": await self.token(), "X-Subject-Token": token, **ENFORCES_ACCESS_RULES}
        return await self._caller.request("GET", "/v3/auth/tokens?nocatalog", headers=headers)


def parse_token(body: dict[str, Any]) -> Token:
    """A token from its JSON in the public API."""
    user, project, domain = body["user"], body.get("project"), body.get("domain")
    roles = body.get("roles", ())
    return Token(
        user_id=user["id"],
        user_name=user["name"],
        user_domain_id=user["domain"]["id"],
        user_domain_name=user["domain"]["name"],
        project_id=project["id"] if project else None,
        project_name=project["name"] if project else None,
        project_domain_id=project["domain"]["id"] if project else None,
        project_domain_name=project["domain"]["name"] if project else None,
        domain_id=domain["id"] if domain else None,
        domain_name=domain["name"] if domain else None,
        system=bool(body.get("system", {}).get("all")),
        roles=frozenset(role["name"].lower() for role in roles),
        role_ids=tuple((role["id"], role["name"]) for role in roles),
        methods=tuple(body.get("methods", ())),
        issued_at=clock.parse(body["issued_at"]),
        expires_at=clock.parse(body["expires_at"]),
        audit_ids=tuple(body.get("audit_ids", ())),
        is_admin_project=body.get("is_admin_project", True),
        trust=_parse_trust(body.get("OS-TRUST:trust")),
        application_credential=_parse_application_credential(body.get("application_credential")),
        access_rules=_parse_access_rules(body.get("application_credential", {}).get("access_rules")),
    )


def _parse_trust(body: dict[str, Any] | None) -> TokenTrust | None:
    if body is None:
        return None
    return TokenTrust(body["id"], body["impersonation"], body["trustor_user"]["id"], body["trustee_user"]["id"])


def _parse_application_credential(body: dict[str, Any] | None) -> TokenApplicationCredential | None:
    return None if body is None else TokenApplicationCredential(body["id"], body["name"], body["restricted"])


def _parse_access_rules(body: list[dict[str, str]] | None) -> tuple[AccessRule, ...] | None:
    if body is None:
        return None
    return tuple(AccessRule(rule.get("id", ""), rule["service"], rule["method"], rule["path"]) for rule in body)


class RemoteValidator(TokenCache):
    """Validates users' tokens by the identity service, and caches them for some seconds."""

    def __init__(self, client: IdentityClient, seconds: float = CACHE_SECONDS, size: int = CACHE_SIZE) -> None:
        super().__init__(self._validate, seconds, size)
        self._client = client

    async def _validate(self, token: str) -> Token | None:
        if not token.isascii() or not token.isprintable():
            return None
        try:
            return await self._client.validate(token)
        except (Unreachable, IdentityError):
            raise Unavailable("The identity service is not available at the moment; try again.") from None
