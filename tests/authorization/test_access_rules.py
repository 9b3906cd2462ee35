"""No route of any service serves a token whose access rules do not name it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from kilonova.config import Config
from kilonova.docs.authorization import build_apis
from kilonova.http import Api, App
from kilonova.http.api import Route
from kilonova.http.client import ClientResponse, InProcess
from kilonova.policy import Policy
from kilonova.policy.credentials import AccessRule, Credentials
from kilonova.services import Services
from tests.fuzz.routes import RouteWalker
from tests.support.cloud import TOKENS

APIS = {api.name: api for api in build_apis()}
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


class Tokens:
    """Accepts "restricted", the token of an administrator of the system with these rules, and the names of TOKENS."""

    def __init__(self, *rules: AccessRule) -> None:
        self.rules = rules

    async def validate(self, token: str) -> Credentials | None:
        return replace(TOKENS["system"], access_rules=self.rules) if token == "restricted" else TOKENS.get(token)


def _caller(*rules: AccessRule) -> InProcess:
    services = Services()
    services.config, services.policy, services.tokens = Config(), Policy(), Tokens(*rules)
    return InProcess(App(services, APIS.values()))


async def _call(caller: InProcess, api: Api, route: Route, **headers: str) -> ClientResponse:
    method, path, version, _ = RouteWalker(api, _unused, {}, {}).request(route)
    sent = {"X-Auth-Token": "restricted", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if version is not None:
        sent["OpenStack-API-Version"] = f"{api.name} {version}"
    return await caller.request(method, f"{api.prefix}{path}", headers=sent)


async def _unused(method: str, path: str, version: str | None, body: Any) -> ClientResponse:
    raise NotImplementedError


def _rule(service: str, method: str, path: str = "/**") -> AccessRule:
    return AccessRule("id", service, method, path)


@pytest.mark.parametrize("name", APIS)
def test_every_route_refuses_tokens_without_a_rule_for_it(name: str) -> None:
    api = APIS[name]
    own = [_rule(service, method, "/none/**") for service in api.service_types for method in METHODS]
    others = [
        _rule(service, method)
        for other in APIS.values()
        if other is not api
        for service in other.service_types
        for method in METHODS
    ]

    async def scenario() -> None:
        called = 0
        for route in api.routes.values():
            if route.needs_token and not route.needs_no_access_rule:
                other_methods = [
                    _rule(service, m) for service in api.service_types for m in METHODS if m != route.method
                ]
                # The rules of a request are those of its method, service and path together.
                answer = await _call(_caller(*own, *others, *other_methods), api, route)
                assert answer.status == 401, (route.key, answer.status, answer.body)
                assert b"access rules" in answer.body or route.method == "HEAD", (route.key, answer.body)
                called += 1
        assert called > 10

    asyncio.run(scenario())


def test_only_the_validation_of_tokens_needs_no_rule() -> None:
    found = [route.key for api in APIS.values() for route in api.routes.values() if route.needs_no_access_rule]
    assert found == ["GET /v3/auth/tokens"]


@pytest.mark.parametrize(
    "service_token, allowed", [("service", True), ("admin", False), ("restricted", False), ("none", False), ("", False)]
)
def test_only_services_pass_on_what_no_rule_names(service_token: str, allowed: bool) -> None:
    async def scenario() -> None:
        api = APIS["placement"]
        route = api.routes["GET /resource_providers/{uuid}"]
        answer = await _call(_caller(), api, route, X_Service_Token=service_token)
        # The path names no provider. Its id is checked after the token.
        assert (answer.status != 401) == allowed, answer.body

    asyncio.run(scenario())


@pytest.mark.parametrize("name", APIS)
def test_paths_of_rules_are_those_of_the_api_with_and_without_its_mount(name: str) -> None:
    async def scenario() -> None:
        api = APIS[name]
        version = api.roots[0] if api.roots else "v0"
        for rule, path, allowed in (
            ("/v0/none", "/v0/none", True),
            (f"{api.prefix}/v0/none", "/v0/none", True),
            ("/v0/*", "/v0/none", True),
            ("/v0/*", "//v0//none/", True),
            ("/v0/*", "/v0/none/other", False),
            ("/v0/none", "/v0/other", False),
            ("/v0/*/other", "/v0/none%2Fother", False),
        ):
            pattern = rule.replace("v0", version)
            caller = _caller(*(_rule(service, "GET", pattern) for service in api.service_types))
            url = f"{api.prefix}{path.replace('v0', version)}"
            answer = await caller.request("GET", url, headers={"X-Auth-Token": "restricted"})
            assert (answer.status == 401) != allowed, (rule, path, answer.status, answer.body)

    asyncio.run(scenario())
