"""Repeated failed logins: what they delay, what they do not, and what the audit log says."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from kilonova.http.client import ClientResponse
from kilonova.http.errors import TooManyRequests
from kilonova.http.rate_limits import MAX_BUCKETS
from kilonova.identity import login_brake, passwords
from kilonova.identity.login_brake import LoginBrake
from kilonova.telemetry.audit import AuditLog
from tests.identity.support import REFUSED, Cloud, cloud, password_auth, project_scope
from tests.support import run
from tests.support.addresses import caller_at

FAILURES = login_brake.OF_USER_AND_ADDRESS[0]
OF_USER = login_brake.OF_USER[0]
ATTACKER, HOME = "10.0.0.66", "10.0.0.1"
Logins = list[ClientResponse]


@pytest.fixture(autouse=True)
def few_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count needs fewer attempts, and none becomes free while a test runs."""
    for name, failures in (("OF_USER_AND_ADDRESS", FAILURES), ("OF_ADDRESS", 25), ("OF_USER", 20)):
        monkeypatch.setattr(login_brake, name, (failures, 1000.0))


@asynccontextmanager
async def identity(url: str, directory: Path) -> AsyncIterator[Cloud]:
    async with cloud(url, directory) as c:
        yield c


async def log_in(c: Cloud, address: str, name: str = "demo", password: str | None = None) -> ClientResponse:
    body = password_auth(name, password)
    return await caller_at(address, c.app, "/identity").request("POST", "/v3/auth/tokens", json=body)


async def fail(c: Cloud, address: str, times: int, name: str = "demo") -> Logins:
    return [await log_in(c, address, name, "guess") for _ in range(times)]


def test_user_is_slowed_down_at_the_attackers_address_only(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            refused = await fail(c, ATTACKER, FAILURES)
            assert [(answer.status, answer.json()) for answer in refused] == [(401, REFUSED)] * FAILURES
            slowed = await log_in(c, ATTACKER)
            assert slowed.status == 429, "even with the right password"
            assert 0 < int(slowed.headers["retry-after"]) <= 1000
            assert slowed.json()["error"]["code"] == 429
            assert (await log_in(c, HOME)).status == 201
            assert (await log_in(c, ATTACKER, "admin")).status == 201

    run(scenario())


def test_users_that_do_not_exist_are_slowed_down_alike(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            for name in ("nobody", "demo"):
                answers = await fail(c, ATTACKER, FAILURES + 1, name)
                assert [answer.status for answer in answers] == [401] * FAILURES + [429], name

    run(scenario())


def test_address_that_tries_many_users_is_slowed_down(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            answers = [await log_in(c, ATTACKER, f"user{number}", "guess") for number in range(26)]
            assert [answer.status for answer in answers] == [401] * 25 + [429]
            assert (await log_in(c, ATTACKER)).status == 429
            assert (await log_in(c, HOME)).status == 201

    run(scenario())


def test_attack_from_many_addresses_does_not_lock_out_known_ones(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            assert (await log_in(c, HOME)).status == 201
            answers = [await log_in(c, f"10.1.0.{number}", password="guess") for number in range(21)]
            assert [answer.status for answer in answers] == [401] * 20 + [429]
            assert (await log_in(c, "10.2.0.1")).status == 429, "a new address competes with the attacker"
            assert (await log_in(c, HOME)).status == 201
            assert (await log_in(c, "10.2.0.1", "admin")).status == 201

    run(scenario())


def test_success_forgets_failures(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            for _ in range(2):
                assert {answer.status for answer in await fail(c, HOME, FAILURES - 1)} == {401}
                assert (await log_in(c, HOME)).status == 201

    run(scenario())


def test_services_of_the_process_are_not_slowed_down(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            for number in range(21):
                await log_in(c, f"10.1.0.{number}", "kilonova", "guess")
            assert (await log_in(c, "10.2.0.1", "kilonova")).status == 429
            assert await c.login("kilonova")

    run(scenario())


def test_change_of_a_password_has_the_brake(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            token, user_id = await c.login("demo"), await c.ident("user", "demo")
            body = {"user": {"password": "new", "original_password": "guess"}}
            caller, path = caller_at(ATTACKER, c.app, "/identity"), f"/v3/users/{user_id}/password"
            headers = {"X-Auth-Token": token}
            found = [await caller.request("POST", path, headers=headers, json=body) for _ in range(FAILURES + 1)]
            assert [answer.status for answer in found] == [401] * FAILURES + [429]

    run(scenario())


def test_failures_are_audited_with_user_address_and_reason(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.log"

    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            c.app.services.audit = AuditLog(str(file))
            await fail(c, ATTACKER, FAILURES + 1)
            await log_in(c, HOME, "x" * 4000, "guess")
            unknown_scope = password_auth("demo", scope=project_scope("none"))
            await caller_at(HOME, c.app, "/identity").request("POST", "/v3/auth/tokens", json=unknown_scope)
            await log_in(c, HOME)

    with caplog.at_level(logging.INFO):
        run(scenario())
    events = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    refused = [(event["initiator"], event["reason"]["text"]) for event in events if event["outcome"] == "failure"]
    assert [(who["name"], who["address"], reason) for who, reason in refused] == [
        *[("demo", ATTACKER, "wrong password")] * FAILURES,
        ("demo", ATTACKER, "Too many failed logins; try again later."),
        ("x" * 255, HOME, "unknown user"),
        ("demo", HOME, "unknown scope"),
    ]
    told = [file.read_text(), *(str(vars(record)) for record in caplog.records)]
    assert not any("guess" in text or "secret of" in text for text in told)


def test_counts_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    brake = LoginBrake(now=lambda: now)
    for _ in range(FAILURES):
        brake.check("demo", ATTACKER)
        brake.count_failure("demo", ATTACKER)
    with pytest.raises(TooManyRequests) as error:
        brake.check("demo", ATTACKER)
    assert error.value.headers == {"Retry-After": "1000"}
    now = 1000.0
    brake.check("demo", ATTACKER)


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_brake, "MAX_BUCKETS", 5)
    brake = LoginBrake()
    for number in range(50):
        brake.count_success("demo", f"10.0.0.{number}")
        brake.count_success("demo", HOME)
    assert len(brake._known) == 5
    for number in range(20):
        brake.count_failure("demo", f"10.1.0.{number}")
    brake.check("demo", HOME)
    assert MAX_BUCKETS < 100_000, "each of the tables"


def test_hashing_queue_is_bounded(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue refuses logins of users. Services of the process log in."""
    go_on = threading.Event()
    original = passwords._verify

    def slow(password: str, stored: str | None) -> bool:
        assert password == "secret of kilonova" or go_on.wait(60)
        return original(password, stored)

    monkeypatch.setattr(passwords, "_verify", slow)

    async def scenario() -> None:
        async with identity(sqlite_url, tmp_path) as c:
            waiting = [asyncio.create_task(log_in(c, f"10.1.0.{number}")) for number in range(passwords.MAX_QUEUED)]
            try:
                while passwords._queue()._size < passwords.MAX_QUEUED:
                    await asyncio.sleep(0)
                refused = await log_in(c, HOME, "nobody", "guess")
                assert refused.status == 503
                assert refused.headers["retry-after"] == "1"
                assert await c.login("kilonova")
            finally:
                go_on.set()
            assert {answer.status for answer in await asyncio.gather(*waiting)} == {201}
            assert (await log_in(c, HOME)).status == 201

    run(scenario())
