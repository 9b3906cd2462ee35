"""The request as a handler sees it, and the response that it returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kilonova import clock
from kilonova.http.errors import BadRequest, Forbidden, RequestTimeout
from kilonova.http.loop_yielder import collect
from kilonova.http.origin import Origin
from kilonova.http.views import OMIT, Value

if TYPE_CHECKING:
    from kilonova.http.api import Api, Route
    from kilonova.http.versions import Behaviour
    from kilonova.policy.credentials import Credentials
    from kilonova.services import Services
    from kilonova.store import Database

# A client that sends nothing of its body for this long is considered disconnected.
CHUNK_TIMEOUT_SECONDS = 60.0
# A body for which the process has waited this long must have arrived at this rate.
SLOW_BODY_SECONDS = 60.0
MIN_BYTES_PER_SECOND = 1024


class Response:
    """A handler's response. Without a status, the route's status applies."""

    __slots__ = ("body", "headers", "status", "stream")

    def __init__(
        self,
        body: object = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        stream: AsyncIterator[bytes] | None = None,
    ) -> None:
        self.body = body
        self.status = status
        self.headers = headers
        self.stream = stream


class Context:
    """One request. Handlers know only the newest API; `render` and `has_behaviour` know the caller's version."""

    __slots__ = (
        "_base_url",
        "_granted",
        "_visible",
        "api",
        "audit",
        "body",
        "headers",
        "minor",
        "mount",
        "now",
        "origin",
        "params",
        "path_prefix",
        "query",
        "receive",
        "request_id",
        "route",
        "services",
        "token",
    )

    token: Credentials

    def __init__(
        self, api: Api, services: Services, headers: dict[str, str], request_id: str, origin: Origin = Origin()
    ) -> None:
        self.api = api
        self.services = services
        self.headers = headers
        self.request_id = request_id
        self.origin = origin
        self.now = clock.now()
        self.minor = api.low
        # The API's mount point below the address that the caller used.
        self.mount = api.prefix
        self.route: Route
        self.params: dict[str, str] = {}
        self.query: dict[str, list[str]] = {}
        self.body: Any = None
        self.receive: Any = None
        # For the audit log: `reason` of a refusal, `user` that tried to log in, `target_id` and `project_id`.
        self.audit: dict[str, Any] = {}
        self.path_prefix = ""
        self._granted: dict[str, bool] = {}
        self._visible: dict[str, list[tuple[str, Value]]] = {}
        self._base_url: str | None = None

    @property
    def db(self) -> Database:
        return self.services.db

    def query_one(self, key: str, default: str | None = None) -> str | None:
        values = self.query.get(key)
        return values[-1] if values else default

    @property
    def auth_token(self) -> str:
        """The caller's token, to call other services on the caller's behalf."""
        return self.headers["x-auth-token"]

    # Policy

    def may(self, rule: str, target: Mapping[str, object] | None = None) -> bool:
        if target is not None:
            return self.services.policy.allows(rule, self.token, target)
        granted = self._granted.get(rule)
        if granted is None:
            own = {"project_id": self.token.project_id, "user_id": self.token.user_id}
            granted = self._granted[rule] = self.services.policy.allows(rule, self.token, own)
        return granted

    def authorize(self, rule: str, target: Mapping[str, object] | None = None) -> None:
        if target is not None and "project_id" in target:
            self.audit.setdefault("project_id", target["project_id"])
        if not self.may(rule, target):
            self.audit["reason"] = f"policy {rule}"
            raise Forbidden(f"Policy doesn't allow {rule} to be performed.")

    # Microversions

    def has_behaviour(self, behaviour: Behaviour) -> bool:
        """Whether the negotiated version has this behaviour."""
        return behaviour in self.api.behaviours_at[self.minor]

    def shows(self, view: str, field: str) -> bool:
        """Whether this caller sees the field; hidden fields need no lookup."""
        return any(name == field for name, _ in self._fields(view))

    def _fields(self, view: str) -> list[tuple[str, Value]]:
        fields = self._visible.get(view)
        if fields is None:
            fields = self._visible[view] = self.api.views[view].visible(self)
        return fields

    def render(self, view: str, shown: object) -> dict[str, object]:
        fields = self._fields(view)
        return {name: found for name, value in fields if (found := value(shown, self)) is not OMIT}

    async def render_all(self, view: str, listed: Iterable[object]) -> list[dict[str, object]]:
        """Render a list. Other requests run meanwhile."""
        return await collect(self.render(view, shown) for shown in listed)

    # Links

    def base_url(self) -> str:
        """The URL of this API, as clients reach it."""
        if self._base_url is None:
            # An API at the root of its own port is not at `public_url`.
            self._base_url = self.site_url() + self.mount if self.mount else self._used_url()
        return self._base_url

    def site_url(self) -> str:
        """The URL below which all APIs of the process are, as clients reach it."""
        return self.services.config.public_url.rstrip("/") or self._used_url()

    def identity_url(self, site_url: str = "") -> str:
        """The URL of the identity service. The built-in one is below `site_url`, if that is known."""
        built_in = f"{site_url or self.site_url()}/identity"
        return quote(self.services.config.identity.auth_url or built_in, safe="/:[]")

    def _used_url(self) -> str:
        return f"{self.origin.scheme}://{self.origin.host}"

    def url(self, path: str) -> str:
        """An absolute link below the version (and project) that the caller used."""
        return f"{self.base_url()}{self.path_prefix}{path}"

    def bookmark(self, path: str) -> str:
        """An absolute link that names no version."""
        project = self.path_prefix.split("/", 2)[2:]
        return f"{self.base_url()}{'/' + project[0] if project else ''}{path}"

    def links(self, path: str) -> list[dict[str, str]]:
        """The `self` link of a resource, and the `bookmark` that names no version."""
        path = quote(path)
        return [{"rel": "self", "href": self.url(path)}, {"rel": "bookmark", "href": self.bookmark(path)}]

    # Bodies that are not JSON

    async def stream(self) -> AsyncIterator[bytes]:
        body = Body(self.receive)
        while body.more:
            if chunk := await body.next_chunk():
                yield chunk


class Body:
    """The body of a request, in chunks. A slow client is refused; the time that the handler takes does not count."""

    __slots__ = ("_receive", "_size", "_waited", "more")

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._size = 0
        self._waited = 0.0
        self.more = True

    async def next_chunk(self) -> bytes:
        began = time.monotonic()
        try:
            async with asyncio.timeout(CHUNK_TIMEOUT_SECONDS):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(
                f"No data of the request body arrived for {CHUNK_TIMEOUT_SECONDS:g} seconds."
            ) from None
        if message["type"] == "http.disconnect":
            raise BadRequest("The client closed the connection before the whole body had arrived.")
        chunk: bytes = message.get("body", b"")
        self.more = message.get("more_body", False)
        self._waited += time.monotonic() - began
        self._size += len(chunk)
        if self.more and self._waited > SLOW_BODY_SECONDS and self._size < self._waited * MIN_BYTES_PER_SECOND:
            raise RequestTimeout(f"The request body arrived with less than {MIN_BYTES_PER_SECOND} bytes per second.")
        return chunk
