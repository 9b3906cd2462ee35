"""Secrets do not appear in the debug log and the audit log, even if their requests fail."""

from __future__ import annotations

import asyncio
import base64
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.support import UNLIMITED, new_database
from tests.support.cloud_process import Client, CloudProcess, Response
from tests.support.databases import opened

# Makes inserts of servers fail; the database's error message quotes the whole row.
BREAK_SQL = {
    "sqlite": "CREATE TRIGGER broken BEFORE INSERT ON servers BEGIN SELECT RAISE(ABORT, 'broken'); END",
    "postgresql": "ALTER TABLE servers ADD CONSTRAINT broken CHECK (name = 'none') NOT VALID",
}
REPAIR_SQL = {"sqlite": "DROP TRIGGER broken", "postgresql": "ALTER TABLE servers DROP CONSTRAINT broken"}


class Secrets:
    """All generated secrets, by description."""

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
def test_log_contains_no_secrets(request: pytest.FixtureRequest, tmp_path: Path, dialect: str) -> None:
    url = new_database(request.getfixturevalue("postgresql_server")) if dialect == "postgresql" else ""
    options = ["--database", url] if url else []
    environ = {**UNLIMITED, "KILONOVA_LOG__LEVEL": "debug", "KILONOVA_AUDIT__READS": "true"}
    with CloudProcess(tmp_path / "data", "--hosts", "2", *options, environ=environ) as cloud:
        secrets_ = Secrets()
        for name, settings in cloud.clouds.items():
            secrets_.keep(f"password of {name}", settings["auth"]["password"])
        client = cloud.client("kilonova")
        secrets_.keep("token of the admin", client.token)
        log_in(client, secrets_)
        change_passwords(client, secrets_)
        store_credentials(client, secrets_)
        use_application_credentials(client, secrets_)
        boot(client, secrets_, 202)
        boot(client, secrets_, 400, imageRef="none")
        boot(client, secrets_, 400, user_data=secrets_.new("user data that is no base64") + "!")
        boot(client, secrets_, 202, personality=secret_files(secrets_), version="2.56")
        boot(client, secrets_, 403, personality=secret_files(secrets_) * 6, version="2.56")
        no_files = [{"path": "/etc/secret", "contents": secrets_.new("file that is no base64") + "!"}]
        boot(client, secrets_, 400, personality=no_files, version="2.56")
        boot(client, secrets_, 400, adminPass=[secrets_.new("password that is no text")])
        database = url or f"sqlite://{cloud.data / 'kilonova.db'}"
        asyncio.run(execute(database, BREAK_SQL[dialect]))
        boot(client, secrets_, 500)
        boot(client, secrets_, 500, personality=secret_files(secrets_), version="2.56")
        asyncio.run(execute(database, REPAIR_SQL[dialect]))
        generate_key(client, secrets_)
        cloud.stop()
        audited = (cloud.data / "audit.log").read_text()
        output = cloud.log + cloud.output + audited
    assert "wrong password" in audited
    assert "unexpected error" in output, "the injected error did not occur"
    assert output.count('"request"') > 20
    assert len(secrets_.known) > 20
    assert secrets_.found_in(output) == []


async def execute(url: str, sql: str) -> None:
    async with opened(url) as db, db.transaction() as tx:
        await tx.execute(sql)


def authenticate(client: Client, identity: Any, **more: Any) -> Response:
    body = {"auth": {"identity": identity, **more}}
    return client.request_url("POST", client.endpoints["auth_url"] + "/auth/tokens", json=body)


def by_password(password: Any, name: Any = "demo") -> dict[str, Any]:
    user = {"name": name, "domain": {"id": "default"}, "password": password}
    return {"methods": ["password"], "password": {"user": user}}


def log_in(client: Client, secrets_: Secrets) -> None:
    tokens = client.endpoints["auth_url"] + "/auth/tokens"
    assert authenticate(client, by_password(secrets_.new("wrong password"))).status == 401
    assert authenticate(client, by_password(secrets_.new("password of nobody"), name="nobody")).status == 401
    assert authenticate(client, by_password([secrets_.new("password in a list")])).status == 400
    assert authenticate(client, by_password(secrets_.new("password"), name=7)).status == 400
    token = {"methods": ["token"], "token": {"id": secrets_.new("wrong token")}}
    assert authenticate(client, token).status == 401
    assert authenticate(client, {**token, "token": {"id": client.token}}).status == 201
    broken = f'{{"auth": {{"identity": {{"password": "{secrets_.new("password in broken JSON")}"'.encode()
    sent = {"Content-Type": "application/json"}
    assert client.request_url("POST", tokens, content=broken, headers=sent).status == 400
    wrong = {"X-Auth-Token": secrets_.new("token in a header")}
    assert client.request_url("GET", client.endpoints["compute"] + "/servers", headers=wrong).status == 401
    subject = {"X-Subject-Token": secrets_.new("token asked about")}
    assert client.get("identity", "/auth/tokens", headers=subject).status == 404
    assert client.delete("identity", "/auth/tokens", headers=subject).status == 404


def change_passwords(client: Client, secrets_: Secrets) -> None:
    first, second = secrets_.new("first password"), secrets_.new("second password")
    user = {"name": "someone", "password": first, "domain_id": "default"}
    made = client.post("identity", "/users", {"user": user})
    assert made.status == 201
    assert client.post("identity", "/users", {"user": {**user, "password": secrets_.new("of a twin")}}).status == 409
    path = f"/users/{made.json()['user']['id']}"
    issued = authenticate(client, by_password(first, name="someone"))
    secrets_.keep("token of someone", issued.headers["x-subject-token"])
    change = {"user": {"password": second, "original_password": first}}
    own = {"X-Auth-Token": issued.headers["x-subject-token"]}
    assert client.post("identity", f"{path}/password", change, headers=own).status == 204
    assert client.post("identity", f"{path}/password", change, headers=own).status == 401
    third = {"user": {"password": secrets_.new("third password"), "enabled": "neither"}}
    assert client.request("PATCH", "identity", path, json=third).status == 400
    assert client.request("PATCH", "identity", path, json={"user": {"password": secrets_.new("fourth")}}).status == 200


def store_credentials(client: Client, secrets_: Secrets) -> None:
    def store(status: int, blob: Any, **other: Any) -> Response:
        answer = client.post("identity", "/credentials", {"credential": {"type": "totp", "blob": blob, **other}})
        assert answer.status == status, answer.body
        return answer

    stored = store(201, secrets_.new("blob")).json()["credential"]
    path = f"/credentials/{stored['id']}"
    store(400, [secrets_.new("blob in a list")])
    store(400, secrets_.new("blob that is no JSON"), type="ec2")
    store(404, secrets_.new("blob of nobody"), user_id="nobody")
    changed = {"credential": {"blob": secrets_.new("changed blob")}}
    assert client.request("PATCH", "identity", path, json=changed).status == 200
    assert client.get("identity", path).status == 200
    path = f"/users/{stored['user_id']}/credentials/OS-EC2"
    keys = client.post("identity", path, {"tenant_id": client.project_id}).json()["credential"]
    secrets_.keep("EC2 secret", keys["secret"])
    assert client.get("identity", path).status == 200
    signature = {"signature": secrets_.new("signature"), "access": keys["access"]}
    assert client.post("identity", "/s3tokens", {"credentials": {**signature, "token": "QQ=="}}).status == 401


def use_application_credentials(client: Client, secrets_: Secrets) -> None:
    issued = client.get("identity", "/auth/tokens", headers={"X-Subject-Token": client.token}).json()["token"]
    path = f"/users/{issued['user']['id']}/application_credentials"
    project = {"name": "admin", "domain": {"id": "default"}}
    scoped = authenticate(client, {"methods": ["token"], "token": {"id": client.token}}, scope={"project": project})
    own = {"X-Auth-Token": secrets_.keep("token of a project", scoped.headers["x-subject-token"])}
    for name, secret, status in (
        ("chosen", secrets_.new("chosen secret"), 201),
        ("chosen", secrets_.new("secret of a twin"), 409),
        ("listed", [secrets_.new("secret in a list")], 400),
    ):
        body = {"application_credential": {"name": name, "secret": secret}}
        assert client.post("identity", path, body, headers=own).status == status
    made = client.post("identity", path, {"application_credential": {"name": "generated"}}, headers=own)
    credential = made.json()["application_credential"]
    secrets_.keep("generated secret", credential["secret"])
    for secret, status in ((credential["secret"], 201), (secrets_.new("wrong secret"), 401)):
        given = {"id": credential["id"], "secret": secret}
        identity = {"methods": ["application_credential"], "application_credential": given}
        answer = authenticate(client, identity)
        assert answer.status == status
        if status == 201:
            secrets_.keep("token of a program", answer.headers["x-subject-token"])


def secret_files(secrets_: Secrets) -> list[dict[str, str]]:
    plain = secrets_.new("content of a file")
    contents = secrets_.keep("encoded content of a file", base64.b64encode(plain.encode()).decode())
    return [{"path": "/etc/secret", "contents": contents}]


def boot(client: Client, secrets_: Secrets, status: int, version: str = "2.96", **other: Any) -> None:
    plain = secrets_.new("user data")
    server = {
        "name": "secretive",
        "flavorRef": "1",
        "imageRef": client.get("image", "/images").json()["images"][0]["id"],
        "networks": "none",
        "adminPass": secrets_.new("admin password"),
        "user_data": secrets_.keep("encoded user data", base64.b64encode(plain.encode()).decode()),
        **other,
    }
    answer = client.post("compute", "/servers", {"server": server}, version=version)
    assert answer.status == status, answer.body
    if status == 500:
        assert secrets_.found_in(answer.body.decode()) == []


def generate_key(client: Client, secrets_: Secrets) -> None:
    answer = client.post("compute", "/os-keypairs", {"keypair": {"name": "key"}}, version="2.1")
    secrets_.keep("private key", answer.json()["keypair"]["private_key"].splitlines()[3])
