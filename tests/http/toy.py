"""A small API with several versions, for tests of the HTTP framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.config import Config
from kilonova.http import Api, App, Context, Field, Response, View, col, multi, repeatable
from kilonova.http.client import ClientResponse, InProcess
from kilonova.http.errors import HttpError
from kilonova.http.versions import Behaviour, Microversion
from kilonova.policy.credentials import Credentials
from kilonova.services import Services
from tests.support import run
from tests.support.cloud import DEMO, TOKENS, Tokens

TEXT = {"type": "string"}
BOLD = Behaviour("toys are bold")


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


TOY = {
    **closed(toy=closed(name={**TEXT, "format": "name"}, colour=TEXT, parts={"type": "array", "items": closed(a=TEXT)}))
}


def toy_fault(error: HttpError, request_id: str) -> Any:
    return {"fault": {"code": error.status, "message": error.message}}


class ToyPolicy:
    def allows(self, rule: str, token: Credentials, target: Any) -> bool:
        return rule != "never" and (rule != "admin" or "admin" in token.roles)


def toy_api(versions: Sequence[Microversion] = (), **options: Any) -> Api:
    settings: dict[str, Any] = {
        "major": 2,
        "low": 1,
        "high": 9,
        "roots": ("v2.1",),
        "frozen_roots": ("v2",),
        "legacy_header": "X-Toy-Version",
        "request_id_header": "X-Toy-Request-Id",
        "project_in_path": True,
        "body_limit": 2000,
        **options,
    }
    api = Api("toy", prefix="/toy", errors=toy_fault, **settings)
    api.view(
        View(
            "toy",
            {
                "name": col("name", TEXT),
                "colour": col("colour", TEXT),
                "secret": col("secret", TEXT, policy="admin"),
                "size": Field(lambda row, ctx: {"cm": row["size"]}),
            },
        )
    )
    _routes(api)
    if any(BOLD in version.changes for version in versions):
        api.behaviour(BOLD.description)
    api.compile(versions)
    return api


def _routes(api: Api) -> None:
    row = {"name": "bear", "colour": "brown", "secret": "s", "size": 5}

    @api.document("GET", "/")
    async def versions(ctx: Context) -> Response:
        return Response({"versions": []})

    @api.route(
        "GET",
        "/toys",
        authenticated=True,
        query={
            "colour": TEXT,
            "tag": multi(TEXT),
            "limit": {"type": "string", "pattern": "^[0-9]+$"},
            **repeatable({"page": {"type": "string", "pattern": "^[0-9]+$"}}),
        },
    )
    async def index(ctx: Context) -> Response:
        return Response(
            {"query": ctx.query, "page": ctx.query_one("page"), "minor": ctx.minor, "bold": ctx.has_behaviour(BOLD)}
        )

    @api.route("POST", "/toys", authenticated=True, body=TOY, status=201)
    async def create(ctx: Context) -> Response:
        return Response(ctx.body)

    @api.route("GET", "/toys/{toy_id}", authenticated=True)
    async def show(ctx: Context, toy_id: str) -> Response:
        return Response({"id": toy_id, "link": ctx.url(f"/toys/{toy_id}"), "toy": ctx.render("toy", row)})

    @api.route("DELETE", "/toys/{toy_id}", policy="never", status=204)
    async def delete(ctx: Context, toy_id: str) -> None:
        raise AssertionError("policy refuses before this")

    @api.route("PUT", "/toys/{toy_id}", authenticated=True, status=204)
    async def update(ctx: Context, toy_id: str) -> None: ...

    @api.route("GET", "/toys/new", authenticated=True)
    async def new(ctx: Context) -> Response:
        return Response({"new": True})

    @api.route("GET", "/broken", authenticated=True)
    async def broken(ctx: Context) -> Response:
        raise RuntimeError("the innards of the program")

    @api.route("GET", "/open", public=True)
    async def public_route(ctx: Context) -> Response:
        return Response({"open": True})

    @api.action(
        "wind",
        "/toys/{toy_id}/action",
        authenticated=True,
        body=closed(turns={"type": "integer"}),
        status=202,
    )
    async def wind(ctx: Context, toy_id: str) -> Response:
        return Response({"wound": toy_id, "body": ctx.body})

    @api.action("drop", "/toys/{toy_id}/action", authenticated=True)
    async def drop(ctx: Context, toy_id: str) -> None: ...


class Toy:
    def __init__(self, api: Api) -> None:
        services = Services()
        services.config = Config()
        services.policy = ToyPolicy()  # type: ignore[assignment]
        services.tokens = Tokens()
        self.services = services
        self.app = App(services, [api])
        self.caller = InProcess(self.app)

    def request(
        self, method: str, path: str, *, as_: str | None = "member", content: bytes | None = None, **headers: str
    ) -> ClientResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if as_ is not None:
            sent["X-Auth-Token"] = as_
        return run(self.caller.request(method, path, headers=sent, content=content))

    def get(self, path: str, **options: Any) -> ClientResponse:
        return self.request("GET", path, **options)

    def post(self, path: str, content: bytes, **options: Any) -> ClientResponse:
        return self.request("POST", path, content=content, **options)


def toy(versions: Sequence[Microversion] = (), **options: Any) -> Toy:
    return Toy(toy_api(versions, **options))


PROJECT = TOKENS["member"].project_id
assert PROJECT == DEMO
