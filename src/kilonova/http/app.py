"""The ASGI application: routes, authenticates, validates and answers the requests of all APIs on one port."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson

from kilonova import store
from kilonova.http import access_rules, audit, dry_run
from kilonova.http.api import Actions, Api, Route, RouteVersion
from kilonova.http.authentication import validate_token
from kilonova.http.client import Refused, Unreachable
from kilonova.http.context import Body, Context, Response
from kilonova.http.error_messages import QUERY, ErrorMessages
from kilonova.http.errors import (
    BadRequest,
    HttpError,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from kilonova.http.json_body import MAX_VALUES, check_text, parse_json
from kilonova.http.media_types import HTML, JSON, accepts_media_type, error_page, prefers_html
from kilonova.http.origin import Origin, request_origin
from kilonova.http.rate_limits import rate_limits_of
from kilonova.http.schema import prune_for_v2
from kilonova.telemetry import context

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)

StatusPage = Callable[[], Awaitable[Response]]
BrowserPages = Callable[[Sequence[str]], Awaitable[Response]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Encoded = tuple[list[tuple[bytes, bytes]], bytes]
_REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PROJECT_ID = re.compile(r"[0-9a-f-]+")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MAX_TEXT_LENGTH = 1000
_MAX_QUERY_FIELDS = 1000
RETRY_AFTER_SECONDS = "5"
_STORAGE_FULL = "Storage is full: nothing was changed. Reads go on; try again when the operator has freed space."
_UNEXPECTED = "Unexpected API Error. The operator finds it in the log by the request id {}."


class App:
    """`status_pages` are unversioned pages for monitoring (health, metrics), by path.

    `pages` are for browsers, by their first path segment; `sockets` serve websockets, by path.
    """

    root: Api | None = None
    # Where the other APIs are, for an API at a separate address; empty: at the address that the client used.
    site_url: str = ""

    def __init__(
        self,
        services: Services,
        apis: Iterable[Api],
        status_pages: Mapping[str, StatusPage] | None = None,
        pages: Mapping[str, BrowserPages] | None = None,
        sockets: Mapping[str, Asgi] | None = None,
    ) -> None:
        self.services = services
        self.pages, self.sockets = dict(pages or {}), dict(sockets or {})
        self.apis = {api.prefix.strip("/"): api for api in apis}
        services.mounts = frozenset(self.apis)
        self.status_pages = dict(status_pages or {})

    @classmethod
    def at_root(cls, services: Services, api: Api, site_url: str = "") -> App:
        """Serve one API at the root of a separate address."""
        app = cls.__new__(cls)
        app.services, app.apis, app.status_pages, app.root, app.site_url = services, {}, {}, api, site_url
        app.pages, app.sockets = {}, {}
        return app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.sockets.get(scope["path"], _refuse_websocket)(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = f"req-{uuid.uuid4()}"
        headers = _headers(scope["headers"])
        caller_id = headers.get("x-openstack-request-id", "")
        context.request_id.set(request_id)
        context.global_request_id.set(caller_id if _REQUEST_ID.fullmatch(caller_id) else None)
        origin = request_origin(scope, headers, self.services.config.trusted_proxies)
        request = _Request(self, scope["method"], headers, request_id, receive, origin)
        response, encoded = await request.respond(scope)
        status = response.status or 200
        if self.services.audit.enabled:
            audit.record(request, response)
        try:
            await _send(send, scope["method"], status, response.stream, encoded)
        except Exception:
            # The headers are sent already. The unfinished body makes the server close the connection.
            log.exception("the response could not be sent completely")
        self.services.metrics.request(request.metric_name(), scope["method"], status, time.perf_counter() - started)
        log.info(
            "request",
            extra={
                "method": scope["method"],
                "path": request.path_for_log(scope["path"]),
                "status": status,
                "seconds": round(time.perf_counter() - started, 6),
                "project_id": request.project_id(),
                "address": origin.address,
            },
        )


class _Request:
    """One request in progress. `api` and `ctx`, once known, decide the format of errors."""

    def __init__(
        self, app: App, method: str, headers: dict[str, str], request_id: str, receive: Any, origin: Origin
    ) -> None:
        self.app = app
        self.method = method
        self.headers = headers
        self.request_id = request_id
        self.receive = receive
        self.origin = origin
        self.api: Api | None = None
        self.ctx: Context | None = None
        self.path = "unrouted"
        # The routes at the path by method, and the path's parameters.
        self.matched: tuple[Mapping[str, Route | Actions], dict[str, str]] | None = None
        self.secret = ""
        self.versioned = True
        self.has_trailing_slash = False

    async def respond(self, scope: Any) -> tuple[Response, Encoded]:
        """The response, also for any error, and its encoded form."""
        try:
            segments = _segments(scope)
            self.has_trailing_slash = scope["path"].endswith("/")
            response = await self.handle(segments, scope)
            return response, _encode(response, self.response_headers())
        except HttpError as error:
            response = self.error_response(error)
        except store.StorageFull:
            log.error("a request failed: the disk of the database is full")
            response = self.error_response(Unavailable(_STORAGE_FULL))
        except store.Unavailable:
            log.warning("the database is not available", exc_info=True)
            response = self.error_response(Unavailable("The database is not available for the moment; try again."))
        except Refused as error:
            # Called with the caller's token: the token has just expired, or a rule of the other service forbids it.
            response = self.error_response(HttpError(str(error), status=error.status))
        except Unreachable:
            log.warning("another service is not available", exc_info=True)
            text = "Another service is not available for the moment; try again."
            response = self.error_response(Unavailable(text, headers={"Retry-After": RETRY_AFTER_SECONDS}))
        except Exception:
            log.exception("unexpected error")
            response = self.error_response(HttpError(_UNEXPECTED.format(self.request_id)))
        return response, _encode(response, self.response_headers())

    async def handle(self, segments: list[str], scope: Any) -> Response:
        status_page = self.app.status_pages.get("/" + "/".join(segments))
        if status_page is not None:
            self.path = "/" + "/".join(segments)
            return await status_page()
        api = self.api = self.app.root or (self.app.apis.get(segments[0]) if segments else None)
        if api is None:
            return await self.serve_page(segments)
        services = self.app.services
        ctx = self.ctx = Context(api, services, self.headers, self.request_id, self.origin)
        ctx.receive = self.receive
        rate_limits_of(services).count_address(self.origin.address)
        if self.app.root is not None:
            ctx.mount = ""
        else:
            segments = segments[1:]
        if not _is_storable(segments):
            raise NotFound(api.messages.not_found)
        return await self.dispatch(api, ctx, segments, scope["query_string"])

    async def serve_page(self, segments: list[str]) -> Response:
        found = self.app.pages.get(segments[0]) if segments else None
        if found is None:
            raise NotFound("The resource could not be found.")
        self.path = f"/{segments[0]}"
        if self.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"The method {self.method} is not allowed here.", headers={"Allow": "GET, HEAD"})
        return await found(segments[1:])

    async def dispatch(self, api: Api, ctx: Context, segments: list[str], query: bytes) -> Response:
        document = api.documents.match(segments)
        if document is not None:
            ctx.params = document[1]
            return await self.run(ctx, self.find_route(ctx, document[0]), query)
        if api.roots or api.frozen_roots:
            if not segments or segments[0] not in (*api.roots, *api.frozen_roots):
                ctx.params = {"path": "/" + "/".join(segments)}
                return await self.run_fallback(api, ctx)
            root, *segments = segments
            ctx.path_prefix = f"/{root}"
            self.versioned = root in api.roots
        found = api.router.match(segments)
        project_id = None
        if found is None and api.project_in_path and segments and _PROJECT_ID.fullmatch(segments[0]):
            project_id = segments[0]
            found = api.router.match(segments[1:])
        if found is not None:
            self.matched = found
            self.secret = found[1].get("token", "")
        if self.has_trailing_slash and not api.trailing_slash:
            found = None
        methods = found[0] if found else {}
        await self.authenticate(ctx, segments, [methods[self.method]] if self.method in methods else methods.values())
        if self.versioned:
            ctx.minor = api.negotiate(self.headers)
        if found is None:
            raise NotFound(api.messages.not_found)
        if project_id is not None:
            self.check_project(ctx, project_id)
        ctx.params = found[1]
        return await self.run(ctx, self.find_route(ctx, found[0]), query)

    async def run_fallback(self, api: Api, ctx: Context) -> Response:
        if api.fallback is None:
            raise NotFound(api.messages.not_found)
        return await api.fallback(ctx) or Response()

    async def authenticate(self, ctx: Context, segments: list[str], routes: Collection[Route | Actions]) -> None:
        """Validate the token. Routes that are public or for hosts need none; a path that does not exist does."""
        if routes and all(isinstance(route, Route) and not route.needs_token for route in routes):
            return
        validated = await validate_token(self.app.services, self.headers, ctx.api)
        if validated is None:
            raise Unauthorized(
                "The request you have made requires authentication.",
                headers={"WWW-Authenticate": f'Keystone uri="{ctx.identity_url(self.app.site_url)}"'},
            )
        ctx.token = validated
        rate_limits_of(self.app.services).count_user(self.origin.address, validated)
        await access_rules.check(ctx, self.method, segments, routes)

    def check_project(self, ctx: Context, project_id: str) -> None:
        if project_id.replace("-", "") != (ctx.token.project_id or "").replace("-", ""):
            raise BadRequest("Malformed request URL: the URL's project_id is not that of the token.")
        ctx.path_prefix += f"/{project_id}"

    def find_route(self, ctx: Context, methods: Mapping[str, Any]) -> Any:
        found = methods.get(self.method)
        if found is None or (isinstance(found, Route) and found.status_below == 405 and not _exists(found, ctx)):
            known = [method for method, route in methods.items() if _exists(route, ctx)]
            if not known and not ctx.api.strict:
                raise NotFound(ctx.api.messages.not_found)
            allowed = ", ".join(sorted(known or methods))
            raise MethodNotAllowed(
                ctx.api.messages.method_not_allowed(self.method, allowed), headers={"Allow": allowed}
            )
        return found

    async def run(self, ctx: Context, target: Route | Actions, query: bytes) -> Response:
        body: Any = None
        if isinstance(target, Actions):
            self.path = "action"
            body = await self.read_json()
            route = _find_action(target, body)
        else:
            route = target
        self.path = route.path + (f"#{route.action}" if route.action else "")
        place = ctx.minor - ctx.api.low
        version = route.versions[place]
        if version is None:
            raise HttpError(ctx.api.messages.not_found, status=route.status_without(place))
        ctx.route = route
        if dry_run.HEADER in self.headers:
            dry_run.refuse_unsupported(ctx, self.method)
        if ctx.api.strict and route.needs_token:
            if self.method == "GET":
                self.check_accept()
            if route.policy is not None:
                ctx.authorize(route.policy)
        ctx.query = _parse_query(version, query, self.versioned, ctx.api.messages)
        if version.body is not None and not route.stream:
            try:
                if body is None:
                    body = await self.read_json()
                if not self.versioned:
                    body = prune_for_v2(body, version.body.schema)
                version.body.check(body, messages=ctx.api.messages)
            except BadRequest:
                if route.check_exists is not None:
                    await route.check_exists(ctx, **ctx.params)
                raise
            for upgrade in version.upgrades:
                body = upgrade(body)
            ctx.body = body
        if route.policy is not None and not ctx.api.strict:
            ctx.authorize(route.policy)
        response = await route.handler(ctx, **ctx.params) or Response()
        if response.status is None:
            response.status = version.status
        return response

    def check_accept(self) -> None:
        if not accepts_media_type(self.headers.get("accept"), JSON):
            raise NotAcceptable("Only application/json is provided")

    async def read_json(self) -> Any:
        assert self.api is not None
        self.check_content_type(self.api)
        limit = self.api.body_limit or self.app.services.config.api.body_limit
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:18]) > limit:
            raise _too_large(limit)
        raw = await _read(self.receive, limit)
        try:
            if not raw:
                raise BadRequest("The request body is empty: a JSON object is expected.")
            # A strict API has checked the policy already, and allows large bodies to administrators.
            return parse_json(raw, None if self.api.strict else MAX_VALUES)
        except BadRequest as error:
            error.message = self.api.messages.malformed_json(error.message)
            raise

    def check_content_type(self, api: Api) -> None:
        given = self.headers.get("content-type")
        if given is None:
            if not api.strict:
                return
            if self.headers.get("content-length", "0") != "0":
                raise BadRequest("content-type header required when content-length > 0")
        kind = given and given.partition(";")[0].strip().lower()
        if kind not in api.body_types:
            raise UnsupportedMediaType(api.messages.unsupported_media_type(kind and kind[:80]))

    def error_response(self, error: HttpError) -> Response:
        if len(error.message) > _MAX_TEXT_LENGTH:
            error.message = error.message[:_MAX_TEXT_LENGTH] + "…"  # it may quote a very long path segment
        accept = self.headers.get("accept")
        if self.api is not None and self.api.html_errors and prefers_html(accept):
            return error_page(error, HTML)
        if self.api is not None and self.api.versioned_errors is not None and self.ctx is not None:
            if not accepts_media_type(accept, JSON):
                return error_page(error, HTML if accepts_media_type(accept, HTML) else "text/plain")
            return Response(self.api.versioned_errors(error, self.ctx), error.status, error.headers)
        write = self.api.errors if self.api is not None else _plain_fault
        return Response(write(error, self.request_id), error.status, error.headers)

    def response_headers(self) -> dict[str, str]:
        headers = {"X-OpenStack-Request-Id": self.request_id}
        if "expect" in self.headers:
            # The body was perhaps not read, and the client may still send it.
            headers["Connection"] = "close"
        if self.api is not None:
            if self.api.request_id_header:
                headers[self.api.request_id_header] = self.request_id
            if self.ctx is not None and self.versioned:
                headers.update(self.api.version_headers(self.ctx.minor))
        return headers

    def metric_name(self) -> str:
        return f"{self.api.prefix}{self.path}" if self.api is not None else self.path

    def path_for_log(self, path: str) -> str:
        """The path without a token."""
        return (path.replace(self.secret, "***") if self.secret else path)[:_MAX_TEXT_LENGTH]

    def project_id(self) -> str | None:
        token = getattr(self.ctx, "token", None)
        return token.project_id if token is not None else None


async def _refuse_websocket(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close"})


def _plain_fault(error: HttpError, request_id: str) -> object:
    return {"error": {"code": error.status, "title": error.title, "message": error.message}}


def _headers(wire: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as a dict. A repeated header becomes one with all its values."""
    headers: dict[str, str] = {}
    for raw, value in wire:
        name = raw.decode("latin-1")
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return headers


def _segments(scope: Any) -> list[str]:
    """The path's segments. It is split before decoding, so that an encoded slash stays inside its segment."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return [unquote_to_bytes(part).decode("utf-8", "replace") for part in raw.split(b"/") if part]


def _is_storable(segments: list[str]) -> bool:
    """Whether the database could hold such names: they have no NUL, and were valid UTF-8."""
    return not any("\x00" in segment or "\ufffd" in segment for segment in segments)


def _parse_query(version: RouteVersion, raw: bytes, versioned: bool, messages: ErrorMessages) -> dict[str, list[str]]:
    if not raw:
        return {}
    if raw.count(b"&") >= _MAX_QUERY_FIELDS:
        raise BadRequest(f"The query string has more than {_MAX_QUERY_FIELDS} parameters.")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise BadRequest("The query string is not valid percent-encoded UTF-8.") from None
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        if version.accepts_query_key(key):
            check_text(key, "a query key")
            check_text(value, f"query key {key}")
            values.setdefault(key, []).append(value)
        elif version.query_closed and versioned:
            raise BadRequest(messages.unknown_query_key(key[:80], [known.pattern for known in version.query_patterns]))
    if values:
        version.query.check(values, QUERY, messages)
    return values


def _exists(known: Route | Actions, ctx: Context) -> bool:
    """Whether the negotiated version has the route, or one of the actions."""
    routes = known.by_name.values() if isinstance(known, Actions) else (known,)
    return any(route.versions[ctx.minor - ctx.api.low] is not None for route in routes)


def _find_action(actions: Actions, body: object) -> Route:
    if not isinstance(body, dict) or len(body) != 1:
        raise BadRequest("The request body must be an object with exactly one key, the name of the action.")
    name = next(iter(body))
    route = actions.by_name.get(name)
    if route is None:
        raise BadRequest(f"There is no such action: {name[:80]}")
    return route


async def _read(receive: Any, limit: int) -> bytes:
    chunks: list[bytes] = []
    size, body = 0, Body(receive)
    while body.more:
        chunk = await body.next_chunk()
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than {limit} bytes.")


def _encode(response: Response, headers: dict[str, str]) -> Encoded:
    """Headers and body as bytes. Raises for what cannot be encoded, before anything is sent."""
    body = b""
    if response.stream is None and response.body is not None:
        if isinstance(response.body, bytes):
            body = response.body
        else:
            body = orjson.dumps(response.body)
            headers["Content-Type"] = "application/json"
    if response.headers:
        headers.update(response.headers)
    if response.stream is None and response.status != 204:
        headers.setdefault("Content-Length", str(len(body)))
    for name, value in headers.items():
        if _CONTROL_CHARACTERS.search(value):
            raise ValueError(f"the value of the header {name} has control characters")
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()], body


async def _send(send: Any, method: str, status: int, stream: AsyncIterator[bytes] | None, encoded: Encoded) -> None:
    headers, body = encoded
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if method == "HEAD" or stream is None:
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
        return
    try:
        async for chunk in stream:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    await send({"type": "http.response.body", "body": b""})
