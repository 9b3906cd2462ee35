"""`kilonova register` in a real Keystone: users, projects and regions of its own, so that the cloud stays as it is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.openstack.cloud import Cloud
from tests.support.cloud_process import kilonova

URL = "http://kilonova.example:8774"
PASSWORD = "the password of the service user"


class Registration:
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.name = f"kilonova-{uuid.uuid4().hex[:8]}"
        self.settings = {
            "KILONOVA_IDENTITY__AUTH_URL": cloud.endpoints["identity"],
            "KILONOVA_IDENTITY__USERNAME": self.name,
            "KILONOVA_IDENTITY__PROJECT_NAME": f"services-{self.name}",
            "KILONOVA_IDENTITY__PASSWORD": PASSWORD,
            "KILONOVA_IDENTITY__REGION": self.name,
            # Services of the region RegionOne, which the catalogue does not have in the new one.
            "KILONOVA_IMAGE__URL": cloud.endpoints["image"],
            "KILONOVA_NETWORK__URL": cloud.endpoints["network"],
            "KILONOVA_VOLUME__URL": cloud.endpoints["block-storage"],
        }

    def run(self, *options: str, login: Mapping[str, str] | None = None, **settings: str) -> CompletedProcess[str]:
        login = login_of(self.cloud.auth()) if login is None else login
        done = kilonova("register", "--url", URL, *options, environ={**self.settings, **settings, **login})
        assert PASSWORD not in done.stdout + done.stderr
        return done

    def changes(self, *options: str, **settings: str) -> list[dict[str, Any]]:
        done = self.run("--json", *options, **settings)
        assert (done.returncode, done.stderr) == (0, "")
        changes: list[dict[str, Any]] = json.loads(done.stdout)
        return changes

    def actions(self, *options: str, **settings: str) -> set[tuple[str, str]]:
        changes = self.changes(*options, **settings)
        return {(one["action"], one["kind"]) for one in changes if one["action"] != "unchanged"}

    def endpoint_urls(self) -> set[str]:
        found = self.cloud.client().get("identity", f"/endpoints?region_id={self.name}")["endpoints"]
        return {one["url"] for one in found}


def login_of(auth: Mapping[str, str]) -> dict[str, str]:
    return {f"OS_{key.upper()}": value for key, value in auth.items()}


@pytest.fixture
def registration(cloud: Cloud) -> Registration:
    return Registration(cloud)


def test_registers_once(registration: Registration) -> None:
    planned = registration.actions("--dry-run")
    assert registration.endpoint_urls() == set()
    assert registration.actions() == planned
    assert planned >= {("created", kind) for kind in ("project", "user", "role assignment", "region", "endpoint")}
    assert registration.actions() == set()
    assert registration.endpoint_urls() == {f"{URL}/compute/v2.1", f"{URL}/placement"}


def test_service_user_may_act_for_users(registration: Registration, cloud: Cloud) -> None:
    """The token for the service's own project leads to a token for the project of any user."""
    registration.changes()
    user = {"name": registration.name, "domain": {"name": "Default"}, "password": PASSWORD}
    scope = {"project": {"name": registration.settings["KILONOVA_IDENTITY__PROJECT_NAME"], "domain": {"id": "default"}}}
    own = token(cloud, {"methods": ["password"], "password": {"user": user}}, scope)
    assert {role["name"] for role in own[1]["roles"]} >= {"admin", "service"}
    demo = cloud.client().get("identity", "/projects?name=demo")["projects"][0]["id"]
    other = token(cloud, {"methods": ["token"], "token": {"id": own[0]}}, {"project": {"id": demo}})
    assert {role["name"] for role in other[1]["roles"]} >= {"member"}


def token(cloud: Cloud, identity: dict[str, Any], scope: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    body = {"auth": {"identity": identity, "scope": scope}}
    answer = cloud.client().request("identity", "POST", "/auth/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return answer.headers["x-subject-token"], answer.json()["token"]


def test_replaced_endpoints_can_be_restored(registration: Registration, cloud: Cloud) -> None:
    registration.changes()
    refused = registration.run("--url", "https://other.example")
    assert refused.returncode == 1
    assert f"compute public: {URL}/compute/v2.1" in refused.stderr
    replaced = registration.changes("--url", "https://other.example", "--replace")
    assert registration.endpoint_urls() == {"https://other.example/compute/v2.1", "https://other.example/placement"}
    undo = [change["undo"] for change in replaced if change["undo"]]
    assert len(undo) == 6
    for command in undo:
        *_, url, endpoint = command.split()
        cloud.client().patch("identity", f"/endpoints/{endpoint}", {"endpoint": {"url": url}})
    assert registration.actions() == set()


def test_password_of_an_existing_user(registration: Registration) -> None:
    registration.changes()
    new = {"KILONOVA_IDENTITY__PASSWORD": "another password"}
    assert "exists with another password" in registration.run(**new).stderr
    assert registration.actions("--update-password", **new) == {("updated", "user")}
    assert registration.actions(**new) == set()


def test_logins(registration: Registration, cloud: Cloud, tmp_path: Any) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text(yaml.safe_dump({"clouds": {"real": {"auth": cloud.auth()}}}))
    by_file = registration.run("--dry-run", "--os-cloud", "real", login={"OS_CLIENT_CONFIG_FILE": str(file)})
    assert by_file.returncode == 0, by_file.stderr
    client = cloud.client()
    user = client.get("identity", "/users?name=admin")["users"][0]["id"]
    credential = client.post(
        "identity", f"/users/{user}/application_credentials", {"application_credential": {"name": registration.name}}
    )["application_credential"]
    login = {
        "OS_APPLICATION_CREDENTIAL_ID": credential["id"],
        "OS_APPLICATION_CREDENTIAL_SECRET": credential["secret"],
    }
    assert registration.run("--dry-run", login=login).returncode == 0
    scope = {name: value for name, value in login_of(cloud.auth()).items() if "PROJECT" in name}
    by_token = registration.run("--dry-run", login={"OS_TOKEN": client.token, **scope})
    assert by_token.returncode == 0, by_token.stderr


@pytest.mark.parametrize(
    "login, message",
    [
        ({"OS_PASSWORD": "wrong"}, "Keystone refused the login of admin"),
        ({"OS_USERNAME": "demo", "OS_PROJECT_NAME": "demo"}, "demo may not list domains; that needs the role admin"),
        ({"OS_PROJECT_NAME": "nowhere"}, "Keystone refused the login of admin"),
    ],
)
def test_refused_administrators(registration: Registration, login: dict[str, str], message: str) -> None:
    refused = registration.run(login={**login_of(registration.cloud.auth()), **login})
    assert refused.returncode == 1
    assert message in refused.stderr
    assert registration.endpoint_urls() == set()
