"""Secrets stay out of the log, at its most talkative, whatever goes wrong with the requests that carry them."""

from __future__ import annotations

import asyncio
import base64
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.support import UNLIMITED, new_database
from tests.support.databases import opened
from tests.support.process import Client, Cloud, Response

# Servers cannot be stored while this stands; the database's complaint would quote the whole row.
BREAK = {
    "sqlite": "CREATE TRIGGER broken BEFORE INSERT ON servers BEGIN SELECT RAISE(ABORT, 'broken'); END",
    "postgresql": "ALTER TABLE servers ADD CONSTRAINT broken CHECK (name = 'none') NOT VALID",
}
MEND = {"sqlite": "DROP TRIGGER broken", "postgresql": "ALTER TABLE servers DROP CONSTRAINT broken"}


class Secrets:
    """Every secret that was made, by what it is."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def new(self, what: str) -> str:
        return self.keep(what, f"secret-{secrets.token_hex(12)}")

    def keep(self, what: str, value: str) -> str:
        self.known[f"{what} {len(self.known)}"] = value
        return value

    def found_in(self, text: str) -> list[str]:
        return [what for what, value in self.known.items() if value in text]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_log_knows_no_secret(request: pytest.FixtureRequest, tmp_path: Path, dialect: str) -> None:
    url = new_database(request.getfixturevalue("postgresql_server")) if dialect == "postgresql" else ""
    options = ["--database", url] if url else []
    environ = {**UNLIMITED, "KILONOVA_LOG__LEVEL": "debug"}
    with Cloud(tmp_path / "data", "--hosts", "2", *options, environ=environ) as cloud:
        kept = Secrets()
        for name, settings in cloud.clouds.items():
            kept.keep(f"password of {name}", settings["auth"]["password"])
        client = cloud.client("kilonova")
        kept.keep("token of the admin", client.token)
        log_in(client, kept)
        change_passwords(client, kept)
        boot(client, kept, 202)
        boot(client, kept, 400, imageRef="none")
        boot(client, kept, 400, user_data=kept.new("user data that is no base64") + "!")
        boot(client, kept, 400, adminPass=[kept.new("password that is no text")])
        database = url or f"sqlite://{cloud.data / 'kilonova.db'}"
        asyncio.run(execute(database, BREAK[dialect]))
        boot(client, kept, 500)
        asyncio.run(execute(database, MEND[dialect]))
        generate_key(client, kept)
        cloud.stop()
        said = cloud.log + cloud.output
    assert "unexpected error" in said, "the injected error was not met"
    assert said.count('"request"') > 20
    assert len(kept.known) > 20
    assert kept.found_in(said) == []


async def execute(url: str, sql: str) -> None:
    async with opened(url) as db, db.transaction() as tx:
        await tx.execute(sql)


def authenticate(client: Client, identity: Any, **more: Any) -> Response:
    body = {"auth": {"identity": identity, **more}}
    return client.plain("POST", client.endpoints["auth_url"] + "/auth/tokens", json=body)


def by_password(password: Any, name: Any = "demo") -> dict[str, Any]:
    user = {"name": name, "domain": {"id": "default"}, "password": password}
    return {"methods": ["password"], "password": {"user": user}}


def log_in(client: Client, kept: Secrets) -> None:
    tokens = client.endpoints["auth_url"] + "/auth/tokens"
    assert authenticate(client, by_password(kept.new("wrong password"))).status == 401
    assert authenticate(client, by_password(kept.new("password of nobody"), name="nobody")).status == 401
    assert authenticate(client, by_password([kept.new("password in a list")])).status == 400
    assert authenticate(client, by_password(kept.new("password"), name=7)).status == 400
    token = {"methods": ["token"], "token": {"id": kept.new("wrong token")}}
    assert authenticate(client, token).status == 401
    assert authenticate(client, {**token, "token": {"id": client.token}}).status == 201
    broken = f'{{"auth": {{"identity": {{"password": "{kept.new("password in broken JSON")}"'.encode()
    sent = {"Content-Type": "application/json"}
    assert client.plain("POST", tokens, content=broken, headers=sent).status == 400
    wrong = {"X-Auth-Token": kept.new("token in a header")}
    assert client.plain("GET", client.endpoints["compute"] + "/servers", headers=wrong).status == 401
    subject = {"X-Subject-Token": kept.new("token asked about")}
    assert client.get("identity", "/auth/tokens", headers=subject).status == 404
    assert client.delete("identity", "/auth/tokens", headers=subject).status == 404


def change_passwords(client: Client, kept: Secrets) -> None:
    first, second = kept.new("first password"), kept.new("second password")
    user = {"name": "someone", "password": first, "domain_id": "default"}
    made = client.post("identity", "/users", {"user": user})
    assert made.status == 201
    assert client.post("identity", "/users", {"user": {**user, "password": kept.new("of a twin")}}).status == 409
    path = f"/users/{made.json()['user']['id']}"
    issued = authenticate(client, by_password(first, name="someone"))
    kept.keep("token of someone", issued.headers["x-subject-token"])
    change = {"user": {"password": second, "original_password": first}}
    own = {"X-Auth-Token": issued.headers["x-subject-token"]}
    assert client.post("identity", f"{path}/password", change, headers=own).status == 204
    assert client.post("identity", f"{path}/password", change, headers=own).status == 401
    third = {"user": {"password": kept.new("third password"), "enabled": "neither"}}
    assert client.request("PATCH", "identity", path, json=third).status == 400
    assert client.request("PATCH", "identity", path, json={"user": {"password": kept.new("fourth")}}).status == 200


def boot(client: Client, kept: Secrets, status: int, **other: Any) -> None:
    plain = kept.new("user data")
    server = {
        "name": "secretive",
        "flavorRef": "1",
        "imageRef": client.get("image", "/images").json()["images"][0]["id"],
        "networks": "none",
        "adminPass": kept.new("admin password"),
        "user_data": kept.keep("encoded user data", base64.b64encode(plain.encode()).decode()),
        **other,
    }
    answer = client.post("compute", "/servers", {"server": server}, version="2.96")
    assert answer.status == status, answer.body
    if status == 500:
        assert kept.found_in(answer.body.decode()) == []


def generate_key(client: Client, kept: Secrets) -> None:
    answer = client.post("compute", "/os-keypairs", {"keypair": {"name": "key"}}, version="2.1")
    kept.keep("private key", answer.json()["keypair"]["private_key"].splitlines()[3])
