"""Callers of services beside a real Keystone: their addresses, and the tokens that they send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import ClientResponse, StreamResponse, Unreachable
from kilonova.identity.catalog_caller import CatalogCaller, without_version
from kilonova.identity.client import IdentityClient, IdentityError, RemoteValidator
from kilonova.identity.service_caller import ServiceCaller
from tests.identity.support import PASSWORDS, cloud
from tests.support import run


class Recorder:
    """Answers every request with the same status, and records URLs and headers."""

    def __init__(self, url: str = "", status: int = 200) -> None:
        self.url = url
        self.status = status
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None, content: Any = None
    ) -> ClientResponse:
        self.paths.append(self.url + path)
        self.headers = dict(headers or {})
        return ClientResponse(self.status, {}, b"{}")

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        answer = await self.request(method, path, headers=headers)

        async def chunks() -> AsyncIterator[bytes]:
            yield answer.body

        yield StreamResponse(answer.status, {}, chunks())


@pytest.mark.parametrize(
    "url",
    [
        "http://c/image",
        "http://c/image/",
        "http://c/image/v2",
        "http://c/image/v2.0/",
        "http://c/image/v3/3ea81215",
        "http://c/image/v3/%(project_id)s",
    ],
)
def test_endpoint_without_version(url: str) -> None:
    assert without_version(url) == "http://c/image"


def test_service_is_called_at_its_address_in_the_catalogue(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            identity = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"])
            recorders: dict[str, Recorder] = {}
            caller = CatalogCaller(
                identity, ("other", "image"), connect=lambda url, tls: recorders.setdefault(url, Recorder(url))
            )
            await caller.request("GET", "/v2/images")
            async with caller.stream("GET", "/v2/images/1/file") as answer:
                assert [chunk async for chunk in answer.chunks] == [b"{}"]
            assert list(recorders) == ["http://cloud.test:1234/image"]
            assert [path.removeprefix("http://cloud.test:1234") for path in recorders.popitem()[1].paths] == [
                "/image/v2/images",
                "/image/v2/images/1/file",
            ]

    run(scenario())


def test_service_is_called_at_its_new_address_after_it_moved(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            identity = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"])
            called: list[str] = []
            caller = CatalogCaller(identity, ("network",), connect=lambda url, tls: called.append(url) or Recorder(url))
            await caller.request("GET", "/v2.0/ports")
            c.caller.host = "moved.test"
            await caller.request("GET", "/v2.0/ports")
            identity.forget()
            await caller.request("GET", "/v2.0/ports")
            assert called == ["http://cloud.test:1234/network", "http://moved.test/network"]

    run(scenario())


def test_service_that_the_catalogue_lacks_is_unreachable(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            identity = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"])
            caller = CatalogCaller(identity, ("shared-file-system",), connect=lambda url, tls: Recorder(url))
            with pytest.raises(Unreachable, match="no internal endpoint of the type shared-file-system"):
                await caller.request("GET", "/v2/shares")

    run(scenario())


def test_service_token_goes_with_a_users_token(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            identity = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"])
            recorder = Recorder()
            caller = ServiceCaller(recorder, identity, always=True)
            await caller.request("GET", "/", headers={"X-Auth-Token": "of a user"})
            assert recorder.headers == {"X-Auth-Token": "of a user", "X-Service-Token": await identity.token()}
            await caller.request("GET", "/")
            assert recorder.headers == {}
            await ServiceCaller(recorder, identity).request("GET", "/", headers={"X-Auth-Token": "of a user"})
            assert recorder.headers == {"X-Auth-Token": "of a user"}

    run(scenario())


def test_refused_token_of_the_service_user_is_replaced(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            identity = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"])
            caller = ServiceCaller(Recorder(status=401), identity, always=True)
            own, demo = await identity.token(), await c.ident("project", "demo")
            assert (await caller.request("GET", "/", headers={"X-Auth-Token": "of a user"})).status == 401
            assert await identity.token() == own
            for project_id in (None, demo):
                refused = (await identity.auth(project_id)).token
                with pytest.raises(Unreachable, match="refused the token of the service user"):
                    await caller.request("GET", "/", headers={"X-Auth-Token": refused})
                assert (await identity.auth(project_id)).token != refused

    run(scenario())


def test_concurrent_requests_with_one_token_validate_it_once(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            validations = 0

            class Counting(IdentityClient):
                async def validate(self, token: str, *, allow_expired: bool = False) -> Any:
                    nonlocal validations
                    validations += 1
                    return await super().validate(token, allow_expired=allow_expired)

            validator = RemoteValidator(Counting(c.caller, username="kilonova", password=PASSWORDS["kilonova"]))
            demo = await c.login("demo")
            found = await asyncio.gather(*(validator.validate(demo) for _ in range(20)))
            assert validations == 1
            assert {token.user_name for token in found if token} == {"demo"}

    run(scenario())


def test_expired_token_is_validated_for_services(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            identity = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"])
            validator, demo = RemoteValidator(identity), await c.login("demo")
            start = clock.now()
            monkeypatch.setattr(clock, "now", lambda: start + 3601)
            for source in (validator, c.tokens):
                assert await source.validate(demo) is None
                found = await source.validate_expired(demo)
                assert found is not None
                assert found.user_name == "demo"
                assert await source.validate_expired("garbage") is None

    run(scenario())


def test_identity_service_with_internal_errors_is_unreachable() -> None:
    async def scenario() -> None:
        identity = IdentityClient(Recorder(status=500), username="kilonova", password="p")
        with pytest.raises(Unreachable, match="the identity service answered 500"):
            await identity.token()
        refused = IdentityClient(Recorder(status=401), username="kilonova", password="p")
        with pytest.raises(IdentityError) as error:
            await refused.token()
        assert getattr(error.value, "passing", False), "operations try again"

    run(scenario())
