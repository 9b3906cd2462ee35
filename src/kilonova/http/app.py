"""The ASGI application: one port, several APIs by path prefix. Every request passes here once."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson

from kilonova import store
from kilonova.http import dry_run
from kilonova.http.api import Actions, Api, Form, Route
from kilonova.http.body import check_text, parse_json
from kilonova.http.client import Refused, Unreachable
from kilonova.http.context import Answer, Context, next_chunk
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
from kilonova.http.schema import pruned
from kilonova.http.words import QUERY, Words
from kilonova.telemetry import context

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)

Plain = Callable[[], Awaitable[Answer]]
Pages = Callable[[Sequence[str]], Awaitable[Answer]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Wire = tuple[list[tuple[bytes, bytes]], bytes]
_REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PROJECT_ID = re.compile(r"[0-9a-f-]+")
JSON, HTML = "application/json", "text/html"
_JSON_TYPES = (JSON, "application/vnd.openstack.compute+json")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LONGEST = 1000
_FIELDS = 1000
_UNEXPECTED = "Unexpected API Error. The operator finds it in the log by the request id {}."


class App:
    """`plain` are unversioned pages for machines (health, metrics), by path.

    `pages` are for browsers, by the first part of their paths; `sockets` take up websockets, by path.
    """

    root: Api | None = None

    def __init__(
        self,
        services: Services,
        apis: Iterable[Api],
        plain: Mapping[str, Plain] | None = None,
        pages: Mapping[str, Pages] | None = None,
        sockets: Mapping[str, Asgi] | None = None,
    ) -> None:
        self.services = services
        self.pages, self.sockets = dict(pages or {}), dict(sockets or {})
        self.apis = {api.prefix.strip("/"): api for api in apis}
        services.mounts = frozenset(self.apis)
        self.plain = dict(plain or {})

    @classmethod
    def at_root(cls, services: Services, api: Api) -> App:
        """One of the process's APIs, at the root of an address of its own."""
        app = cls.__new__(cls)
        app.services, app.apis, app.plain, app.root = services, {}, {}, api
        app.pages, app.sockets = {}, {}
        return app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.sockets.get(scope["path"], _no_socket)(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = f"req-{uuid.uuid4()}"
        headers = _headers(scope["headers"])
        given = headers.get("x-openstack-request-id", "")
        context.request_id.set(request_id)
        context.global_request_id.set(given if _REQUEST_ID.fullmatch(given) else None)
        request = _Request(self, scope["method"], headers, request_id, receive)
        answer, wire = await request.settle(scope)
        status = answer.status or 200
        try:
            await _send(send, scope["method"], status, answer.stream, wire)
        except Exception:
            # Too late for another answer. Left unfinished, it makes the server close the connection.
            log.exception("the answer broke off")
        self.services.metrics.request(request.name(), scope["method"], status, time.perf_counter() - started)
        log.info(
            "request",
            extra={
                "method": scope["method"],
                "path": request.shown(scope["path"]),
                "status": status,
                "seconds": round(time.perf_counter() - started, 6),
                "project_id": request.project_id(),
            },
        )


class _Request:
    """One request on its way: what is known of it so far also decides how an error is written."""

    def __init__(self, app: App, method: str, headers: dict[str, str], request_id: str, receive: Any) -> None:
        self.app = app
        self.method = method
        self.headers = headers
        self.request_id = request_id
        self.receive = receive
        self.api: Api | None = None
        self.ctx: Context | None = None
        self.path = "unrouted"
        self.secret = ""
        self.versioned = True
        self.slashed = False

    async def settle(self, scope: Any) -> tuple[Answer, Wire]:
        """The answer, whatever happens, and its form on the wire."""
        try:
            segments = _segments(scope)
            self.slashed = scope["path"].endswith("/")
            answer = await self.answer(segments, scope["query_string"])
            return answer, _encoded(answer, self.answer_headers())
        except HttpError as error:
            answer = self.fault(error)
        except store.Unavailable:
            log.warning("the database is not available", exc_info=True)
            answer = self.fault(Unavailable("The database is not available for the moment; try again."))
        except Refused as error:
            # In the caller's name: a token that has just ended, or a rule of the other service's own.
            answer = self.fault(HttpError(str(error), status=error.status))
        except Unreachable:
            log.warning("another service is not available", exc_info=True)
            answer = self.fault(Unavailable("Another service is not available for the moment; try again."))
        except Exception:
            log.exception("unexpected error")
            answer = self.fault(HttpError(_UNEXPECTED.format(self.request_id)))
        return answer, _encoded(answer, self.answer_headers())

    async def answer(self, segments: list[str], query: bytes) -> Answer:
        plain = self.app.plain.get("/" + "/".join(segments))
        if plain is not None:
            self.path = "/" + "/".join(segments)
            return await plain()
        api = self.api = self.app.root or (self.app.apis.get(segments[0]) if segments else None)
        if api is None:
            return await self.page(segments)
        ctx = self.ctx = Context(api, self.app.services, self.headers, self.request_id)
        ctx.receive = self.receive
        if self.app.root is not None:
            ctx.mount = ""
        else:
            segments = segments[1:]
        if not _storable(segments):
            raise NotFound(api.words.not_found)
        return await self.dispatch(api, ctx, segments, query)

    async def page(self, segments: list[str]) -> Answer:
        found = self.app.pages.get(segments[0]) if segments else None
        if found is None:
            raise NotFound("The resource could not be found.")
        self.path = f"/{segments[0]}"
        if self.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"The method {self.method} is not allowed here.", headers={"Allow": "GET, HEAD"})
        return await found(segments[1:])

    async def dispatch(self, api: Api, ctx: Context, segments: list[str], query: bytes) -> Answer:
        document = api.documents.match(segments)
        if document is not None:
            ctx.params = document[1]
            return await self.run(ctx, self.choose(ctx, document[0]), query)
        if api.roots or api.frozen_roots:
            if not segments or segments[0] not in (*api.roots, *api.frozen_roots):
                ctx.params = {"path": "/" + "/".join(segments)}
                return await self.astray(api, ctx)
            root, *segments = segments
            ctx.path_prefix = f"/{root}"
            self.versioned = root in api.roots
        found = api.router.match(segments)
        project_id = None
        if found is None and api.project_in_path and segments and _PROJECT_ID.fullmatch(segments[0]):
            project_id = segments[0]
            found = api.router.match(segments[1:])
        if found is not None:
            self.secret = found[1].get("token", "")
        if self.slashed and not api.trailing_slash:
            found = None
        await self.authenticate(ctx, found[0].get(self.method) if found else None)
        if self.versioned:
            ctx.minor = api.negotiate(self.headers)
        if found is None:
            raise NotFound(api.words.not_found)
        if project_id is not None:
            self.check_project(ctx, project_id)
        ctx.params = found[1]
        return await self.run(ctx, self.choose(ctx, found[0]), query)

    async def astray(self, api: Api, ctx: Context) -> Answer:
        if api.fallback is None:
            raise NotFound(api.words.not_found)
        return await api.fallback(ctx) or Answer()

    async def authenticate(self, ctx: Context, route: Route | Actions | None) -> None:
        """Only a route for everybody goes without a token; a path that does not exist needs one too."""
        if isinstance(route, Route) and route.public:
            return
        token = self.headers.get("x-auth-token")
        valid = await self.app.services.tokens.validate(token) if token else None
        if valid is None:
            raise Unauthorized(
                "The request you have made requires authentication.",
                headers={"WWW-Authenticate": 'Keystone uri="/identity"'},
            )
        ctx.token = valid

    def check_project(self, ctx: Context, project_id: str) -> None:
        if project_id.replace("-", "") != (ctx.token.project_id or "").replace("-", ""):
            raise BadRequest("Malformed request URL: the URL's project_id is not that of the token.")
        ctx.path_prefix += f"/{project_id}"

    def choose(self, ctx: Context, methods: Mapping[str, Any]) -> Any:
        chosen = methods.get(self.method)
        if chosen is None or (isinstance(chosen, Route) and chosen.status_below == 405 and not _exists(chosen, ctx)):
            known = [method for method, route in methods.items() if _exists(route, ctx)]
            if not known and not ctx.api.strict:
                raise NotFound(ctx.api.words.not_found)
            allowed = ", ".join(sorted(known or methods))
            raise MethodNotAllowed(ctx.api.words.method(self.method, allowed), headers={"Allow": allowed})
        return chosen

    async def run(self, ctx: Context, chosen: Route | Actions, query: bytes) -> Answer:
        body: Any = None
        if isinstance(chosen, Actions):
            self.path = "action"
            body = await self.read_json()
            route = _action(chosen, body)
        else:
            route = chosen
        self.path = route.path + (f"#{route.action}" if route.action else "")
        form = route.table[ctx.minor - ctx.api.low]
        if form is None:
            raise NotFound(ctx.api.words.not_found)
        ctx.route, ctx.form = route, form
        if dry_run.HEADER in self.headers:
            dry_run.check(ctx, self.method)
        if ctx.api.strict and not route.public:
            if self.method == "GET":
                self.check_accept()
            if route.policy is not None:
                ctx.authorize(route.policy)
        ctx.query = _query(form, query, self.versioned, ctx.api.words)
        if form.body is not None and not route.stream:
            try:
                if body is None:
                    body = await self.read_json()
                if not self.versioned:
                    body = pruned(body, form.body.schema)
                form.body.check(body, words=ctx.api.words)
            except BadRequest:
                if route.subject is not None:
                    await route.subject(ctx, **ctx.params)
                raise
            for upgrade in form.upgrades:
                body = upgrade(body)
            ctx.body = body
        if route.policy is not None and not ctx.api.strict:
            ctx.authorize(route.policy)
        answer = await route.handler(ctx, **ctx.params) or Answer()
        if answer.status is None:
            answer.status = form.status
        return answer

    def check_accept(self) -> None:
        if not takes(self.headers.get("accept"), JSON):
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
            return parse_json(raw)
        except BadRequest as error:
            error.message = self.api.words.malformed(error.message)
            raise

    def check_content_type(self, api: Api) -> None:
        given = self.headers.get("content-type")
        if given is None:
            if not api.strict:
                return
            if self.headers.get("content-length", "0") != "0":
                raise BadRequest("content-type header required when content-length > 0")
        kind = given and given.partition(";")[0].strip().lower()
        if kind not in ((JSON,) if api.strict else _JSON_TYPES):
            raise UnsupportedMediaType(api.words.media_type(kind and kind[:80]))

    def fault(self, error: HttpError) -> Answer:
        if len(error.message) > _LONGEST:
            error.message = error.message[:_LONGEST] + "…"  # a name as long as the request's line may be
        if self.api is not None and self.api.versioned_errors is not None and self.ctx is not None:
            accept = self.headers.get("accept")
            if not takes(accept, JSON):
                return _page_of(error, HTML if takes(accept, HTML) else "text/plain")
            return Answer(self.api.versioned_errors(error, self.ctx), error.status, error.headers)
        write = self.api.errors if self.api is not None else _plain_fault
        return Answer(write(error, self.request_id), error.status, error.headers)

    def answer_headers(self) -> dict[str, str]:
        headers = {"X-OpenStack-Request-Id": self.request_id}
        if "expect" in self.headers:
            # The client may or may not go on to send a body that nobody waited for.
            headers["Connection"] = "close"
        if self.api is not None:
            if self.api.request_id_header:
                headers[self.api.request_id_header] = self.request_id
            if self.ctx is not None and self.versioned:
                headers.update(self.api.version_headers(self.ctx.minor))
        return headers

    def name(self) -> str:
        return f"{self.api.prefix}{self.path}" if self.api is not None else self.path

    def shown(self, path: str) -> str:
        """For the log, where tokens do not belong."""
        return (path.replace(self.secret, "***") if self.secret else path)[:_LONGEST]

    def project_id(self) -> str | None:
        token = getattr(self.ctx, "token", None)
        return token.project_id if token is not None else None


async def _no_socket(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close"})


def takes(accept: str | None, kind: str) -> bool:
    """Whether a caller takes answers of a media type; who says nothing takes all."""
    if not accept:
        return True
    family = kind.partition("/")[0]
    return any(entry.partition(";")[0].strip().lower() in (kind, f"{family}/*", "*/*") for entry in accept.split(","))


def _page_of(error: HttpError, kind: str) -> Answer:
    """An error for who takes no JSON."""
    text = f"{error.status} {error.title}\n\n{error.message}\n"
    if kind == HTML:
        text = f"<html><title>{error.status} {error.title}</title><body><p>{escape(error.message)}</p></body></html>"
    return Answer(text.encode(), error.status, {**error.headers, "Content-Type": f"{kind}; charset=UTF-8"})


def _plain_fault(error: HttpError, request_id: str) -> Any:
    return {"error": {"code": error.status, "title": error.title, "message": error.message}}


def _headers(wire: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """A header that stands several times means the same as one with all its values."""
    headers: dict[str, str] = {}
    for raw, value in wire:
        name = raw.decode("latin-1")
        text = value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return headers


def _segments(scope: Any) -> list[str]:
    """Split before decoding, so that an encoded slash stays inside its segment."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return [unquote_to_bytes(part).decode("utf-8", "replace") for part in raw.split(b"/") if part]


def _storable(segments: list[str]) -> bool:
    """Whether such a name could be in the database: neither NUL nor bytes that were no UTF-8."""
    return not any("\x00" in segment or "\ufffd" in segment for segment in segments)


def _query(form: Form, raw: bytes, versioned: bool, words: Words) -> dict[str, list[str]]:
    if not raw:
        return {}
    if raw.count(b"&") >= _FIELDS:
        raise BadRequest(f"The query string has more than {_FIELDS} parameters.")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise BadRequest("The query string is not valid percent-encoded UTF-8.") from None
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        if form.takes(key):
            check_text(key, "a query key")
            check_text(value, f"query key {key}")
            values.setdefault(key, []).append(value)
        elif form.query_closed and versioned:
            raise BadRequest(words.query_key(key[:80], [like.pattern for like in form.query_patterns]))
    if values:
        form.query.check(values, QUERY, words)
    return values


def _exists(known: Route | Actions, ctx: Context) -> bool:
    """Whether the negotiated version has it."""
    routes = known.by_name.values() if isinstance(known, Actions) else (known,)
    return any(route.table[ctx.minor - ctx.api.low] is not None for route in routes)


def _action(actions: Actions, body: Any) -> Route:
    if not isinstance(body, dict) or len(body) != 1:
        raise BadRequest("The request body must be an object with exactly one key, the name of the action.")
    name = next(iter(body))
    route = actions.by_name.get(name)
    if route is None:
        raise BadRequest(f"There is no such action: {name[:80]}")
    return route


async def _read(receive: Any, limit: int) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        chunk, more = await next_chunk(receive)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than {limit} bytes.")


def _encoded(answer: Answer, headers: dict[str, str]) -> Wire:
    """Headers and body as bytes. Whatever cannot be said so raises here, while another answer can still be given."""
    body = b""
    if answer.stream is None and answer.body is not None:
        if isinstance(answer.body, bytes):
            body = answer.body
        else:
            body = orjson.dumps(answer.body)
            headers["Content-Type"] = "application/json"
    if answer.headers:
        headers.update(answer.headers)
    if answer.stream is None and answer.status != 204:
        headers.setdefault("Content-Length", str(len(body)))
    for name, value in headers.items():
        if _CONTROLS.search(value):
            raise ValueError(f"the header {name} would hold control characters")
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()], body


async def _send(send: Any, method: str, status: int, stream: AsyncIterator[bytes] | None, wire: Wire) -> None:
    headers, body = wire
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
