"""The identity client against the built-in service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import Caller, ClientResponse, Unreachable
from kilonova.http.errors import Unavailable
from kilonova.identity.client import IdentityClient, IdentityError, RemoteValidator, RoleMissing, base_url
from tests.identity.support import PASSWORDS, SYSTEM, cloud
from tests.support import run


class CountingCaller:
    """A caller that counts requests and can become unreachable."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.seen: list[tuple[str, str]] = []
        self.cut = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: Any = None,
    ) -> ClientResponse:
        self.seen.append((method, path))
        if self.cut:
            raise Unreachable("cut off")
        return await self.caller.request(method, path, headers=headers, json=json, content=content)

    def stream(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def _client(caller: Any, password: str = PASSWORDS["kilonova"]) -> IdentityClient:
    return IdentityClient(caller, username="kilonova", password=password)


def test_own_token_is_cached_and_renewed(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            caller = CountingCaller(c.caller)
            client = _client(caller)
            tokens = await asyncio.gather(*(client.token() for _ in range(5)))
            assert len(set(tokens)) == 1
            assert caller.seen == [("POST", "/v3/auth/tokens")]
            found = await c.tokens.validate(tokens[0])
            assert found is not None
            assert found.roles >= {"admin", "service"}
            start = clock.now()
            monkeypatch.setattr(clock, "now", lambda: start + 3600 - 299)
            assert await client.token() != tokens[0]

    run(scenario())


def test_service_gets_tokens_for_other_projects(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            caller = CountingCaller(c.caller)
            client = _client(caller)
            own, demo = await c.ident("project", "service"), await c.ident("project", "demo")
            assert own is not None
            assert demo is not None
            assert await client.auth() == await client.auth(own) == (await client.token(), own, True)
            there = await client.auth(demo)
            assert await client.auth(demo) == there
            assert len(caller.seen) == 2
            assert there.token not in repr(there)
            found = await c.tokens.validate(there.token)
            assert found is not None
            assert (found.project_id, found.user_name) == (demo, "kilonova")
            with pytest.raises(IdentityError, match="no role"):
                await client.auth("nowhere")
            client.forget()
            assert (await client.auth(demo)).token != there.token

    run(scenario())


def test_short_lived_token_is_not_renewed_at_every_call(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            c.tokens.token_seconds = 60
            client = _client(c.caller)
            assert await client.token() == await client.token()

    run(scenario())


def test_validates_tokens_of_every_scope(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            client = _client(c.caller)
            for text in (
                await c.login("demo"),
                await c.login("admin", SYSTEM),
                await c.login("admin", "unscoped"),
            ):
                local, remote = await c.tokens.validate(text), await client.validate(text)
                assert local is not None
                assert remote is not None
                assert remote.issued_at == pytest.approx(local.issued_at, abs=1e-5)
                assert remote.expires_at == pytest.approx(local.expires_at, abs=1e-5)
                for name in local.__struct_fields__:
                    if name not in ("issued_at", "expires_at"):
                        assert getattr(remote, name) == getattr(local, name), name
            assert await client.validate("garbage") is None

    run(scenario())


def test_has_project(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            caller = CountingCaller(c.caller)
            client = _client(caller)
            demo = await c.tokens.validate(await c.login("demo"))
            assert demo is not None
            known = str(demo.project_id)
            assert await client.has_project(known)
            assert not await client.has_project("nowhere")
            assert not await client.has_project("a/b?c")
            own = await client.token()
            await c.call("DELETE", "/v3/auth/tokens", own, X_Subject_Token=own)
            assert await client.has_project(known)
            caller.cut = True
            with pytest.raises(Unreachable):
                await client.has_project(known)
            with pytest.raises(Unreachable, match="refused the service user"):
                await _client(c.caller, "wrong").has_project(known)

    run(scenario())


def test_revoked_own_token_is_replaced(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            client = _client(c.caller)
            own, demo = await client.token(), await c.login("demo")
            await c.call("DELETE", "/v3/auth/tokens", own, X_Subject_Token=own)
            assert (await client.validate(demo)) is not None

    run(scenario())


def test_finds_endpoints_in_the_catalogue(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            client = _client(c.caller)
            assert await client.endpoint("image") == "http://cloud.test:1234/image"
            assert await client.endpoint("images", "image", interface="public")
            with pytest.raises(IdentityError, match="no internal endpoint of the type dns or other"):
                await client.endpoint("dns", "other")
            elsewhere = IdentityClient(c.caller, username="kilonova", password=PASSWORDS["kilonova"], region="Two")
            with pytest.raises(IdentityError, match="in the region Two"):
                await elsewhere.endpoint("image")

    run(scenario())


def test_refused_service_user_is_an_error(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            with pytest.raises(IdentityError) as error:
                await _client(c.caller, "wrong").token()
            assert "wrong" not in str(error.value)

    run(scenario())


def test_remote_validator_caches_tokens(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            caller = CountingCaller(c.caller)
            validator = RemoteValidator(_client(caller))
            demo = await c.login("demo")
            for _ in range(3):
                assert await validator.validate(demo) is not None
            assert len(caller.seen) == 2
            caller.cut = True
            assert await validator.validate(demo) is not None
            with pytest.raises(Unavailable):
                await validator.validate("gAAAAother")
            caller.cut = False
            await c.call("DELETE", "/v3/auth/tokens", demo, X_Subject_Token=demo)
            start = clock.now()
            monkeypatch.setattr(clock, "now", lambda: start + 10.1)
            assert await validator.validate(demo) is None
            assert await validator.validate("no\nheader") is None

    run(scenario())


@pytest.mark.parametrize(
    "url", ["http://k/identity", "http://k/identity/", "http://k/identity/v3", "http://k/identity/v3/"]
)
def test_base_url_has_no_version(url: str) -> None:
    assert base_url(url) == "http://k/identity"


def test_project_token_after_own_token_was_revoked_and_without_a_role(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            caller = CountingCaller(c.caller)
            client = _client(caller)
            admin, demo = await c.login("admin"), await c.ident("project", "demo")
            own = await client.token()
            revoked = await c.call("DELETE", "/v3/auth/tokens", admin, X_Subject_Token=own)
            assert revoked.status == 204
            # The service's own token may be the invalid one: a new one is tried.
            assert (await client.auth(demo)).project_id == demo
            assert await client.token() != own
            with pytest.raises(RoleMissing, match="no role in the project missing; `kilonova register`") as refused:
                await client.auth("missing")
            assert refused.value.status == 403

    run(scenario())


def test_list_renews_the_token(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            client = _client(c.caller)
            service = await client.service("compute")
            admin = await c.login("admin")
            limits = [{"service_id": service, "resource_name": f"r{n}", "default_limit": n} for n in range(3)]
            await c.ok("POST", "/v3/registered_limits", admin, {"registered_limits": limits})
            await c.call("DELETE", "/v3/auth/tokens", admin, X_Subject_Token=await client.token())
            found = await client.list("registered_limits", {"service_id": service})
            assert sorted(limit["default_limit"] for limit in found) == [0, 1, 2]
            assert await client.list("registered_limits", {"service_id": "other"}) == []
            with pytest.raises(IdentityError, match="no internal endpoint of the type nothing"):
                await client.service("nothing")

    run(scenario())
