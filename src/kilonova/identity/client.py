"""Client of the identity service, built in or a real Keystone: gets service tokens, validates users' tokens."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from kilonova import clock
from kilonova.http.client import Refused, Remote, Unreachable, valid_response
from kilonova.http.errors import Unavailable
from kilonova.identity.token import Token, TokenApplicationCredential, TokenTrust
from kilonova.identity.token_provider import CACHE_SECONDS, CACHE_SIZE, TokenCache
from kilonova.policy.credentials import AccessRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kilonova.http.client import Caller, ClientResponse

log = logging.getLogger(__name__)

# How long before its expiry a token is renewed, so that requests with it can finish.
RENEW_BEFORE_SECONDS = 300.0
# When a client may repeat a request whose token could not be validated.
RETRY_AFTER_SECONDS = 5
# Without this header the identity service takes tokens with access rules for invalid ones.
ENFORCES_ACCESS_RULES = {"OpenStack-Identity-Access-Rules": "1.0"}


class IdentityError(Exception):
    """The identity service refused a request of this service, or sent an unexpected response."""


class LoginRefused(IdentityError, Unreachable):
    """The service user cannot log in. Operations try again, because an operator may correct this."""


class RoleMissing(IdentityError, Refused):
    """The service user has no role in a project where it should create a resource."""

    def __init__(self, project_id: str) -> None:
        super().__init__(
            403, f"the service user has no role in the project {project_id}; `kilonova register` grants it one"
        )


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


class Endpoint(NamedTuple):
    """Where a service is, and the id of the service."""

    service_id: str
    url: str


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
        region: str = "",
        interface: str = "internal",
    ) -> None:
        """`region` (empty: any) and `interface` choose the endpoints of the catalogue."""
        self._caller = caller
        self.region = region
        self._interface = interface
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
        self._expires_at = 0.0
        # The login under way: all callers wait for the same one.
        self._renewal: asyncio.Task[None] | None = None
        # By project: a token for another project, and when to renew it.
        self._project_tokens: dict[str, tuple[str, float]] = {}

    async def token(self) -> str:
        """The service's own token, renewed in time. Raises Unreachable, of which LoginRefused is one."""
        if clock.now() >= self._renew_at:
            if self._renewal is None:
                self._renewal = asyncio.create_task(self._renew())
                self._renewal.add_done_callback(self._end_renewal)
            try:
                await asyncio.shield(self._renewal)
            except Unreachable:
                if clock.now() >= self._expires_at:
                    raise
        return self._text

    def _end_renewal(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled():
            renewal.exception()  # callers have seen it, unless all of them have gone

    async def auth(self, project_id: str | None = None) -> Auth:
        """A token of the service user for its own project, or for a project where it creates resources.

        There the user needs a role; a role inherited from the domain is enough. Raises RoleMissing, and as `token`.
        """
        text = await self.token()
        own = self._body["project"]["id"]
        if project_id is None or project_id == own:
            return Auth(text, own, is_service=True)
        known = self._project_tokens.get(project_id)
        if known is None or clock.now() >= known[1]:
            known = await self._get_project_token(project_id)
            if len(self._project_tokens) >= CACHE_SIZE:
                self._project_tokens.clear()
            self._project_tokens[project_id] = known
        return Auth(known[0], project_id)

    async def _get_project_token(self, project_id: str) -> tuple[str, float]:
        own = await self.token()
        response = await self._request_project_token(own, project_id)
        if response.status == 401:
            # The service's own token may be the invalid one: try again with a new one.
            self.forget(own)
            response = await self._request_project_token(await self.token(), project_id)
        if response.status != 201:
            raise RoleMissing(project_id)
        with valid_response("identity"):
            return response.headers["x-subject-token"], self._renew_at

    async def _request_project_token(self, own: str, project_id: str) -> ClientResponse:
        identity = {"methods": ["token"], "token": {"id": own}}
        auth = {"identity": identity, "scope": {"project": {"id": project_id}}}
        response = await self._caller.request("POST", "/v3/auth/tokens?nocatalog", json={"auth": auth})
        _check_available(response)
        return response

    async def close(self) -> None:
        """Close the connections, for a program that ends before the service does."""
        if isinstance(self._caller, Remote):
            await self._caller.close()

    def is_own(self, token: str) -> bool:
        """Whether it is a token of the service user, in its own project or another."""
        return token == self._text or any(token == known for known, _ in self._project_tokens.values())

    def forget(self, refused: str | None = None) -> None:
        """Drop the tokens after one was refused, so that the next call gets new ones. Ignores a replaced token."""
        if refused is None or self.is_own(refused):
            self._renew_at = self._expires_at = 0.0
            self._project_tokens.clear()

    async def _renew(self) -> None:
        response = await self._caller.request("POST", "/v3/auth/tokens", json={"auth": self._auth})
        _check_available(response)
        if response.status != 201:
            raise LoginRefused(f"the identity service refused the service user: {response.status}")
        with valid_response("identity"):
            text, body = response.headers["x-subject-token"], response.json()["token"]
            lifetime = clock.parse(body["expires_at"]) - clock.now()
        self._text, self._body = text, body
        self._expires_at = clock.now() + lifetime
        self._renew_at = clock.now() + max(lifetime - RENEW_BEFORE_SECONDS, lifetime / 2)

    async def endpoint(self, *service_types: str, interface: str = "") -> str:
        """The URL of a service in the catalogue, by the first type that is there. Raises as `token` does.

        `interface` is that of the client by default.
        """
        return (await self._find_endpoint(service_types, interface or self._interface)).url

    async def service(self, *service_types: str) -> str:
        """The id of the service that has the endpoint. Raises as `token` does."""
        return (await self._find_endpoint(service_types, self._interface)).service_id

    async def _find_endpoint(self, service_types: tuple[str, ...], interface: str) -> Endpoint:
        await self.token()
        return find_endpoint(self._body.get("catalog", ()), service_types, interface, self.region)

    async def has_project(self, project_id: str) -> bool:
        """Whether the project exists. True if the service user may not look it up."""
        try:
            response = await self._get(f"/v3/projects/{quote(project_id, safe='')}")
        except IdentityError as error:
            raise Unreachable(str(error)) from None
        if response.status in (200, 403):
            return True
        if response.status == 404:
            return False
        raise Unreachable(f"the identity service answered {response.status} to the lookup of a project")

    async def list(self, collection: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """All resources of a collection, such as `limits`, that match the query. Raises as `token` does."""
        path: str | None = f"/v3/{collection}?{urlencode(query)}"
        found: list[dict[str, Any]] = []
        while path is not None:
            response = await self._get(path)
            _check_available(response)
            if response.status != 200:
                raise IdentityError(f"the identity service answered {response.status} to the list of {collection}")
            with valid_response("identity"):
                body = response.json()
                found += body[collection]
                link = body.get("links", {}).get("next")
                path = link and link[link.index("/v3/") :]
        return found

    async def _get(self, path: str, headers: Mapping[str, str] = {}) -> ClientResponse:
        """The response to the service's own token, or to a new one if that is the invalid one."""
        own = await self.token()
        response = await self._caller.request("GET", path, headers={"X-Auth-Token": own, **headers})
        if response.status == 401:
            self.forget(own)
            own = await self.token()
            response = await self._caller.request("GET", path, headers={"X-Auth-Token": own, **headers})
        return response

    async def validate(self, token: str, *, allow_expired: bool = False) -> Token | None:
        """Validate a user's token; None if it is not valid."""
        query = "nocatalog&allow_expired=1" if allow_expired else "nocatalog"
        response = await self._get(f"/v3/auth/tokens?{query}", {"X-Subject-Token": token, **ENFORCES_ACCESS_RULES})
        if response.status == 404:
            return None
        if response.status != 200:
            raise IdentityError(f"the identity service answered {response.status} to the validation of a token")
        with valid_response("identity"):
            return parse_token(response.json()["token"])


def _check_available(response: ClientResponse) -> None:
    if response.status >= 500 or response.status == 429:
        raise Unreachable(f"the identity service answered {response.status}")


def find_endpoint(
    catalog: Iterable[dict[str, Any]], service_types: Sequence[str], interface: str, region: str
) -> Endpoint:
    """The endpoint of a service in a catalogue, by the first type that is there. An empty region is any.

    Raises IdentityError.
    """
    services = list(catalog)
    for service_type in service_types:
        for service in services:
            for found in service["endpoints"] if service["type"] == service_type else ():
                if found["interface"] == interface and region in ("", found["region_id"]):
                    return Endpoint(service["id"], str(found["url"]))
    where = f" in the region {region}" if region else ""
    raise IdentityError(f"the catalogue has no {interface} endpoint of the type {' or '.join(service_types)}{where}")


def parse_token(body: dict[str, Any]) -> Token:
    """A token from its JSON in the public API."""
    user, project, domain = body["user"], body.get("project"), body.get("domain")
    roles = body.get("roles", ())
    return Token(
        user_id=user["id"],
        user_name=user["name"],
        user_domain_id=user["domain"].get("id") or "",
        user_domain_name=user["domain"].get("name") or "",
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
        super().__init__(self._validate_once, seconds, size)
        self._client = client
        # Requests under way, by token: many requests with one token validate it once.
        self._pending: dict[str, asyncio.Task[Token | None]] = {}

    async def validate_expired(self, token: str) -> Token | None:
        return await self._validate(token, allow_expired=True)

    async def _validate_once(self, token: str) -> Token | None:
        task = self._pending.get(token)
        if task is None:
            task = self._pending[token] = asyncio.create_task(self._validate(token))
            task.add_done_callback(lambda done: self._pending.pop(token, None))
        return await asyncio.shield(task)

    async def _validate(self, token: str, *, allow_expired: bool = False) -> Token | None:
        if not token.isascii() or not token.isprintable():
            return None
        try:
            return await self._client.validate(token, allow_expired=allow_expired)
        except (Unreachable, IdentityError) as error:
            log.warning("a token cannot be validated: %s", error)
            raise Unavailable(
                "The identity service is not available at the moment; try again.",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            ) from None
