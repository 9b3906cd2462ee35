"""Encoding, validation, caching and revocation of tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova import clock
from kilonova.identity.token import METHODS, SYSTEM, UNSCOPED, Claims, Scope, Token, pack, unpack
from kilonova.identity.token_keys import ConfiguredKeys, KeyFile, KeyRing, new_key
from kilonova.identity.token_provider import TokenCache, TokenProvider
from tests.identity.support import Cloud, cloud, project_scope
from tests.support import run
from tests.support.databases import opened

IDENTS = st.one_of(
    st.uuids().map(lambda value: value.hex), st.text(max_size=64), st.text("abcdefABCDEF019", min_size=32, max_size=32)
)


@given(
    IDENTS,
    st.one_of(
        st.just(SYSTEM),
        st.just(UNSCOPED),
        IDENTS.map(lambda ident: Scope("project", ident)),
        IDENTS.map(lambda ident: Scope("domain", ident)),
    ),
    st.sets(st.sampled_from(METHODS)),
    st.floats(0, 1e10),
    st.lists(st.text(max_size=30), max_size=2),
    st.integers(0, 2**31),
    st.tuples(st.one_of(st.just(""), IDENTS), st.one_of(st.just(""), IDENTS)),
)
def test_claims_survive_packing(
    user_id: str,
    scope: Scope,
    methods: set[str],
    when: float,
    audit: list[str],
    token_epoch: int,
    limits: tuple[str, str],
) -> None:
    ordered = tuple(method for method in METHODS if method in methods)
    claims = Claims(user_id, scope, ordered, when, when + 3600, tuple(audit), token_epoch, *limits)
    assert unpack(pack(claims)) == claims


def test_claims_of_the_former_release_are_read() -> None:
    raw = msgspec.msgpack.encode([1, b"\0eve", 1, b"\0demo", 0b11, 1000.5, 4600.5, ["a", "b"]])
    expected = Claims("eve", Scope("project", "demo"), ("password", "token"), 1000.5, 4600.5, ("a", "b"))
    assert unpack(raw) == expected


def test_former_release_refuses_limited_tokens() -> None:
    """It knows version 1 only. It ignores what follows the attributes that it knows."""
    user = Claims("eve", Scope("project", "demo"), ("password",), 1.0, 2.0, ("a",))
    for claims, version in (
        (user, 1),
        (user._replace(trust_id="t"), 2),
        (user._replace(application_credential_id="c"), 2),
    ):
        assert msgspec.msgpack.decode(pack(claims))[0] == version


@given(st.binary(max_size=200))
def test_invalid_claims_with_valid_key_are_refused(raw: bytes) -> None:
    ring = KeyRing(ConfiguredKeys([new_key()]))

    class NoDatabase:
        def listen(self, channel: str, callback: object) -> None: ...

    validator = TokenProvider(NoDatabase(), ring)  # type: ignore[arg-type]
    assert validator._claims(ring.encrypt(raw)) is None


def test_tampered_tokens_are_refused(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            token = await c.login("demo")
            assert await c.tokens.look_up(token) is not None
            for place in range(0, len(token), 7):
                changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
                assert await c.tokens.look_up(changed) is None, place
            other = TokenProvider(c.services.db, KeyRing(ConfiguredKeys([new_key()])))
            assert await other.look_up(token) is None

    run(scenario())


# The cache


def _token(expires_at: float) -> Token:
    return Token(
        user_id="u",
        user_name="u",
        user_domain_id="d",
        user_domain_name="d",
        expires_at=expires_at,
    )


class TokenSource:
    def __init__(self, lifetime: float = 3600.0) -> None:
        self.looked_up: list[str] = []
        self.lifetime = lifetime
        self.gate: asyncio.Event | None = None

    async def look_up(self, text: str) -> Token | None:
        self.looked_up.append(text)
        found = None if text == "bad" else _token(clock.now() + self.lifetime)
        if self.gate:
            await self.gate.wait()
        return found


def test_cache_looks_up_once_until_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        now = [1000.0]
        monkeypatch.setattr(clock, "now", lambda: now[0])
        source = TokenSource()
        cache = TokenCache(source.look_up, seconds=10)
        for _ in range(3):
            assert await cache.validate("a") is not None
        assert source.looked_up == ["a"]
        now[0] += 10
        await cache.validate("a")
        assert source.looked_up == ["a", "a"]
        cache.forget()
        await cache.validate("a")
        assert source.looked_up == ["a"] * 3
        for _ in range(2):
            assert await cache.validate("bad") is None
        assert source.looked_up == ["a"] * 3 + ["bad"] * 2

    run(scenario())


def test_cache_never_outlives_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        now = [1000.0]
        monkeypatch.setattr(clock, "now", lambda: now[0])
        source = TokenSource(lifetime=2)
        cache = TokenCache(source.look_up, seconds=10)
        await cache.validate("a")
        now[0] += 2.5
        await cache.validate("a")
        assert source.looked_up == ["a", "a"]

    run(scenario())


def test_cache_is_bounded_and_drops_the_oldest() -> None:
    async def scenario() -> None:
        source = TokenSource()
        cache = TokenCache(source.look_up, size=3)
        for text in "abcd":
            await cache.validate(text)
        source.looked_up.clear()
        for text in "bcd":
            await cache.validate(text)
        assert source.looked_up == []
        await cache.validate("a")
        assert source.looked_up == ["a"]

    run(scenario())


def test_lookup_during_change_is_not_cached() -> None:
    async def scenario() -> None:
        source = TokenSource()
        source.gate = asyncio.Event()
        cache = TokenCache(source.look_up)
        looking = asyncio.create_task(cache.validate("a"))
        await asyncio.sleep(0)
        cache.forget()
        source.gate.set()
        await looking
        await cache.validate("a")
        assert source.looked_up == ["a", "a"]

    run(scenario())


# Revocation


async def _patch(c: Cloud, admin: str, noun: str, name: str, **values: object) -> None:
    await c.ok("PATCH", f"/v3/{noun}s/{await c.ident(noun, name)}", admin, {noun: values})


def test_disabling_revokes_tokens(database_url: str, tmp_path: Path) -> None:
    """After enabling again, new tokens are valid and old tokens stay revoked."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin", {"system": {"all": True}})
            domain = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "east"}}))["domain"]
            body = {"project": {"name": "far", "domain_id": domain["id"]}}
            await c.ok("POST", "/v3/projects", admin, body)
            user_id = await c.new_user(admin, "eve", "demo")
            await c.grant(admin, user_id, "far", "reader")
            far = {"project": {"name": "far", "domain": {"name": "east"}}}
            for noun, name, scope in (
                ("user", "eve", project_scope("demo")),
                ("project", "demo", project_scope("demo")),
                ("domain", "east", far),
            ):
                token = await c.login("eve", scope, "secret of eve")
                unscoped = await c.login("eve", "unscoped", "secret of eve")
                assert await c.works(token)
                await _patch(c, admin, noun, name, enabled=False)
                assert not await c.works(token), noun
                assert await c.works(unscoped) == (noun != "user"), noun
                await _patch(c, admin, noun, name, enabled=True)
                assert not await c.works(token), noun
                assert await c.works(await c.login("eve", scope, "secret of eve")), noun

    run(scenario())


def test_unassigned_role_leaves_every_token(database_url: str, tmp_path: Path) -> None:
    """Other roles and scopes of the user's tokens stay, as in Keystone. Without any role the token is not valid."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.new_user(admin, "eve", "demo", "manager")
            await c.grant(admin, user_id, "demo", "reader")
            await c.grant(admin, user_id, "service", "reader")
            demo = await c.login("eve", project_scope("demo"), "secret of eve")
            service = await c.login("eve", project_scope("service"), "secret of eve")
            assert (await c.tokens.validate(demo) or _token(0)).roles == {"manager", "member", "reader"}
            await c.grant(admin, user_id, "demo", "manager", "DELETE")
            assert (await c.tokens.validate(demo) or _token(0)).roles == {"reader"}
            assert await c.works(service)
            await c.grant(admin, user_id, "demo", "reader", "DELETE")
            assert not await c.works(demo)
            assert await c.works(service)

    run(scenario())


@pytest.mark.parametrize("noun, name", [("user", "eve"), ("project", "demo"), ("role", "member")])
def test_deletion_invalidates_tokens(database_url: str, tmp_path: Path, noun: str, name: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            await c.new_user(admin, "eve", "demo")
            token = await c.login("eve", project_scope("demo"), "secret of eve")
            assert await c.works(token)
            await c.ok("DELETE", f"/v3/{noun}s/{await c.ident(noun, name)}", admin)
            assert not await c.works(token)

    run(scenario())


def test_token_has_current_roles(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            assert (await c.tokens.validate(demo) or _token(0)).roles == {"member", "reader"}
            await c.grant(admin, await c.ident("user", "demo"), "demo", "manager")
            assert (await c.tokens.validate(demo) or _token(0)).roles == {"manager", "member", "reader"}

    run(scenario())


@pytest.mark.parametrize("event", ["token", "password", "role", "trust", "application credential"])
def test_end_of_rights_reaches_other_processes(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """At once by notification on PostgreSQL, after the cache expires on SQLite."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c, opened(database_url) as elsewhere:
            other = TokenProvider(elsewhere, KeyRing(KeyFile(tmp_path / "token-keys")))
            admin, user_id = await c.login("admin"), await c.ident("user", "demo")
            token, path = await c.login("demo"), f"/v3/users/{user_id}"
            if event == "trust":
                project = await c.ident("project", "demo")
                users = {"trustor_user_id": user_id, "trustee_user_id": user_id, "impersonation": True}
                body = {**users, "project_id": project, "roles": [{"name": "member"}]}
                trust = (await c.ok("POST", "/v3/OS-TRUST/trusts", token, {"trust": body}))["trust"]["id"]
                path = f"/v3/OS-TRUST/trusts/{trust}"
                token = await c.login("demo", {"OS-TRUST:trust": {"id": trust}})
            elif event == "application credential":
                path += "/application_credentials"
                made = await c.ok("POST", path, token, {"application_credential": {"name": "ci"}})
                given = {key: made["application_credential"][key] for key in ("id", "secret")}
                identity = {"methods": ["application_credential"], "application_credential": given}
                issued = await c.authenticate({"auth": {"identity": identity}})
                token, path = issued.headers["x-subject-token"], f"{path}/{given['id']}"
            found = await other.validate(token)
            assert found is not None
            assert found.roles == {"member", "reader"}
            if event == "token":
                assert (await c.call("DELETE", "/v3/auth/tokens", token, X_Subject_Token=token)).status == 204
            elif event == "password":
                await c.ok("PATCH", path, admin, {"user": {"password": "new"}})
            elif event == "role":
                await c.grant(admin, user_id, "demo", "member", "DELETE")
            else:
                await c.ok("DELETE", path, admin)
            if elsewhere.dialect == "sqlite":
                start = clock.now()
                monkeypatch.setattr(clock, "now", lambda: start + 10.1)
                assert await other.validate(token) is None
                return
            async with asyncio.timeout(60):
                while await other.validate(token) is not None:
                    await asyncio.sleep(0.01)

    run(scenario())


def test_tokens_of_a_dropped_key_are_refused_at_once(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            file = KeyFile(tmp_path / "token-keys")
            old = await c.login("demo")
            file.rotate(lifetime_seconds=3600)
            new = await c.login("demo")
            assert await c.works(old)
            assert await c.works(new)
            file.rotate(lifetime_seconds=0)
            assert await c.works(old), "validated tokens are cached for some seconds"
            c.tokens.keys.reload()
            assert not await c.works(old)
            assert not await c.works(new)
            assert await c.works(await c.login("demo"))

    run(scenario())


def test_expired_revocations_are_deleted(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            start = clock.now()
            for later in (0, 4 * 86400):
                monkeypatch.setattr(clock, "now", lambda later=later: start + later)
                token = await c.login("demo")
                await c.call("DELETE", "/v3/auth/tokens", token, X_Subject_Token=token)
                assert await c.services.db.fetch_value("SELECT count(*) FROM revocations") == 1

    run(scenario())
