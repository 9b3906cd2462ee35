"""Password hashes: content and cost."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from kilonova.identity import passwords
from kilonova.identity.seed import seed, user_names
from tests.identity.support import cloud, password_auth
from tests.support import run
from tests.support.databases import opened


def test_only_the_password_matches() -> None:
    async def scenario() -> None:
        first, second = await passwords.hash_passwords(["päss wörd", "päss wörd"])
        assert first != second
        assert "päss" not in first
        for stored in (first, second):
            assert await passwords.verify_password("päss wörd", stored)
            for wrong in ("päss wörd ", "", "pass word"):
                assert not await passwords.verify_password(wrong, stored)
        assert not await passwords.verify_password("", None)

    run(scenario())


def test_hashes_stay_valid_after_parameter_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        stored = await passwords.hash_password("x")
        monkeypatch.setattr(passwords, "LOG_N", 5)
        monkeypatch.setattr(passwords, "R", 4)
        assert await passwords.verify_password("x", stored)
        assert (await passwords.hash_password("x")).startswith("$scrypt$ln=5,r=4,p=1$")

    run(scenario())


@pytest.mark.usefixtures("full_cost_hashes")
def test_hash_cost() -> None:
    assert run(passwords.hash_password("x")).startswith("$scrypt$ln=14,r=8,p=1$")


@pytest.mark.usefixtures("full_cost_hashes")
def test_every_refusal_costs_one_hash(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One full hash, whether or not the user, domain or password exists."""

    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            await c.ok("POST", "/v3/users", admin, {"user": {"name": "mute"}})
            costs: list[tuple[int, int, int]] = []
            original = hashlib.scrypt

            def counted(password: bytes, **options: Any) -> bytes:
                costs.append((options["n"], options["r"], options["p"]))
                return original(password, **options)

            monkeypatch.setattr(hashlib, "scrypt", counted)
            for body in (
                password_auth("demo", "wrong"),
                password_auth("nobody", "wrong"),
                password_auth("mute", "wrong"),
                password_auth("demo", "wrong", domain={"name": "Nowhere"}),
            ):
                costs.clear()
                assert (await c.authenticate(body)).status == 401
                assert costs == [(2**14, 8, 1)]

    run(scenario())


def test_seed_hashes_passwords_in_parallel(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=60)
    original = hashlib.scrypt

    def paired(password: bytes, **options: Any) -> bytes:
        together.wait()
        return original(password, **options)

    async def scenario() -> None:
        monkeypatch.setattr(hashlib, "scrypt", paired)
        async with opened(sqlite_url) as db:
            # Six hashes, two at a time: hashed one by one, the barrier would break.
            await seed(db, dict.fromkeys(user_names(), "secret"))

    run(scenario())
