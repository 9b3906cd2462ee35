"""The client to the identity service, built in or a real Keystone: a service's own token, and others' validated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from kilonova import clock
from kilonova.http.client import Unreachable
from kilonova.http.errors import Unavailable
from kilonova.identity.token import Token
from kilonova.identity.tokens import CACHE_SECONDS, CACHE_SIZE, TokenCache

if TYPE_CHECKING:
    from kilonova.http.client import Caller, Response

# A token is renewed this long before its end, so that what it is used for can finish.
RENEW_SECONDS = 300.0


class IdentityError(Exception):
    """The identity service refused us, or answered what it should not have."""


def base_of(auth_url: str) -> str:
    """The address to give a `Remote` caller: the client's paths begin with the version."""
    return auth_url.rstrip("/").removesuffix("/v3")


class Auth(NamedTuple):
    """A token, and the project it is for where it is for one: some services want that in the path as well."""

    token: str
    project_id: str | None
    # Whether it is the service's own, in its own project, where it has the role of services.
    is_service: bool = False

    def __repr__(self) -> str:
        # A repr ends in a log sooner or later.
        return f"Auth(project_id={self.project_id!r})"


class IdentityClient:
    """Speaks as one user, a service's, in one project. The caller's base is the service's, without a version."""

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
        # In other projects, with the moment to renew each.
        self._elsewhere: dict[str, tuple[str, float]] = {}

    async def token(self) -> str:
        """The service's own token, renewed in time. Raises Unreachable or IdentityError."""
        if clock.now() >= self._renew_at:
            async with self._renewing:
                if clock.now() >= self._renew_at:
                    await self._renew()
        return self._text

    async def auth(self, project_id: str | None = None) -> Auth:
        """The service in its own project, or in another one, where it makes what shall belong to that.

        For that it needs a role there; one that is inherited from the domain will do. Raises as `token` does.
        """
        text = await self.token()
        own = self._body["project"]["id"]
        if project_id is None or project_id == own:
            return Auth(text, own, is_service=True)
        known = self._elsewhere.get(project_id)
        if known is None or clock.now() >= known[1]:
            known = self._elsewhere[project_id] = await self._scoped(text, project_id)
        return Auth(known[0], project_id)

    async def _scoped(self, text: str, project_id: str) -> tuple[str, float]:
        if len(self._elsewhere) >= CACHE_SIZE:
            self._elsewhere.clear()
        identity = {"methods": ["token"], "token": {"id": text}}
        asked = {"identity": identity, "scope": {"project": {"id": project_id}}}
        answer = await self._caller.request("POST", "/v3/auth/tokens?nocatalog", json={"auth": asked})
        if answer.status != 201:
            raise IdentityError(f"the service user may not act in the project {project_id}: it has no role there")
        return answer.headers["x-subject-token"], self._renew_at

    def forget(self) -> None:
        """The token was refused somewhere: get a new one next time."""
        self._renew_at = 0.0
        self._elsewhere.clear()

    async def _renew(self) -> None:
        answer = await self._caller.request("POST", "/v3/auth/tokens", json={"auth": self._auth})
        if answer.status != 201:
            raise IdentityError(f"the identity service refused the service user: {answer.status}")
        self._text = answer.headers["x-subject-token"]
        self._body = answer.json()["token"]
        lifetime = clock.parse(self._body["expires_at"]) - clock.now()
        self._renew_at = clock.now() + max(lifetime - RENEW_SECONDS, lifetime / 2)

    async def endpoint(self, service_type: str, *, interface: str = "internal", region: str | None = None) -> str:
        """The address of a service by the catalogue. Raises IdentityError where there is none."""
        await self.token()
        for service in self._body.get("catalog", ()):
            if service["type"] == service_type:
                for found in service["endpoints"]:
                    if found["interface"] == interface and region in (None, found["region_id"]):
                        return str(found["url"])
        raise IdentityError(f"the catalogue has no {interface} endpoint of the type {service_type}")

    async def has_project(self, project_id: str) -> bool:
        """Whether there is such a project. Where we may not look, whoever names it is believed."""
        answer = await self._project(project_id)
        if answer.status == 401:
            self.forget()
            answer = await self._project(project_id)
        if answer.status in (200, 403):
            return True
        if answer.status == 404:
            return False
        raise Unreachable(f"the identity service answered {answer.status} to a look at a project")

    async def _project(self, project_id: str) -> Response:
        try:
            headers = {"X-Auth-Token": await self.token()}
        except IdentityError as error:
            raise Unreachable(str(error)) from None
        return await self._caller.request("GET", f"/v3/projects/{quote(project_id, safe='')}", headers=headers)

    async def validate(self, token: str) -> Token | None:
        """What a user's token says; None if it is not valid."""
        answer = await self._ask(token)
        if answer.status == 401:
            # Our own token may have ended early; a new one tells which of the two it was.
            self.forget()
            answer = await self._ask(token)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise IdentityError(f"the identity service answered {answer.status} to the validation of a token")
        return token_of(answer.json()["token"])

    async def _ask(self, token: str) -> Response:
        headers = {"X-Auth-Token": await self.token(), "X-Subject-Token": token}
        return await self._caller.request("GET", "/v3/auth/tokens?nocatalog", headers=headers)


def token_of(body: dict[str, Any]) -> Token:
    """A token from the body by which the public API shows it."""
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
    )


class RemoteValidator(TokenCache):
    """Validates users' tokens by asking the service, and remembers the answers for some seconds."""

    def __init__(self, client: IdentityClient, seconds: float = CACHE_SECONDS, size: int = CACHE_SIZE) -> None:
        super().__init__(self._ask, seconds, size)
        self._client = client

    async def _ask(self, token: str) -> Token | None:
        if not token.isascii() or not token.isprintable():
            return None
        try:
            return await self._client.validate(token)
        except (Unreachable, IdentityError):
            raise Unavailable("The identity service cannot be asked for the moment; try again.") from None
