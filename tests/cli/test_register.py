"""`kilonova register` against another cloud, whose identity service is the Keystone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cloud_process import Client, CloudProcess, kilonova

PASSWORD = "the password of the service user"
URL = "http://kilonova.example:8774"


@pytest.fixture(scope="module")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("keystone") / "data", "--hosts", "0") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def admin(keystone: CloudProcess) -> Client:
    return keystone.client("kilonova")


class Registration:
    """Runs the command for a region of its own, where the Keystone has no compute service yet."""

    def __init__(self, keystone: CloudProcess, name: str) -> None:
        self.keystone = keystone
        self.name = name
        self.settings = {
            "KILONOVA_IDENTITY__AUTH_URL": keystone.endpoints["identity"],
            "KILONOVA_IDENTITY__USERNAME": name,
            "KILONOVA_IDENTITY__PROJECT_NAME": f"services of {name}",
            "KILONOVA_IDENTITY__PASSWORD": PASSWORD,
            "KILONOVA_IDENTITY__REGION": name,
        }
        self.login = login_variables(keystone.clouds["kilonova"]["auth"])

    def run(self, *options: str, login: Mapping[str, str] | None = None, **settings: str) -> Any:
        environ = {**self.settings, **settings, **(self.login if login is None else login)}
        # Urls of services that the Keystone's catalogue does not have in the region are set.
        urls = {f"KILONOVA_{name}__URL": f"http://{name.lower()}.example" for name in ("IMAGE", "NETWORK", "VOLUME")}
        done = kilonova("register", "--url", URL, *options, environ={**urls, **environ})
        assert PASSWORD not in done.stdout + done.stderr
        assert self.login["OS_PASSWORD"] not in done.stdout + done.stderr
        return done

    def changes(self, *options: str, **settings: str) -> list[dict[str, Any]]:
        done = self.run("--json", *options, **settings)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        changes: list[dict[str, Any]] = json.loads(done.stdout)
        return changes

    def actions(self, *options: str, **settings: str) -> set[tuple[str, str]]:
        """What was done to which kinds of objects, except unchanged ones."""
        changes = self.changes(*options, **settings)
        return {(one["action"], one["kind"]) for one in changes if one["action"] != "unchanged"}


@pytest.fixture
def registration(keystone: CloudProcess, request: pytest.FixtureRequest) -> Registration:
    return Registration(keystone, request.node.name.removeprefix("test_")[:60])


def login_variables(auth: Mapping[str, str]) -> dict[str, str]:
    return {f"OS_{key.upper()}": value for key, value in auth.items()}


def endpoints(admin: Client, region: str) -> dict[tuple[str, str], str]:
    types = {one["id"]: one["type"] for one in admin.get("identity", "/services").json()["services"]}
    found = admin.get("identity", f"/endpoints?region_id={region}").json()["endpoints"]
    return {(types[one["service_id"]], one["interface"]): one["url"] for one in found}


def test_creates_everything_and_changes_nothing_again(registration: Registration, admin: Client) -> None:
    created = registration.actions()
    assert created == {("created", kind) for kind in ("project", "user", "role assignment", "region", "endpoint")}
    assert endpoints(admin, registration.name) == {
        **{("compute", interface): f"{URL}/compute/v2.1" for interface in ("public", "internal", "admin")},
        **{("placement", interface): f"{URL}/placement" for interface in ("public", "internal", "admin")},
    }
    user = admin.get("identity", f"/users?name={registration.name}").json()["users"][0]
    listed = admin.get("identity", f"/role_assignments?user.id={user['id']}&include_names").json()["role_assignments"]
    assert {(one["role"]["name"], *(scope_name(one["scope"]))) for one in listed} == {
        ("admin", "project", f"services of {registration.name}"),
        ("service", "project", f"services of {registration.name}"),
        ("member", "domain", "Default"),
    }
    assert registration.actions() == set()
    again = registration.run()
    assert again.returncode == 0
    assert "Nothing to change" in again.stdout


def scope_name(scope: Mapping[str, Any]) -> tuple[str, str]:
    kind = next(kind for kind in ("project", "domain") if kind in scope)
    return kind, scope[kind]["name"]


def test_dry_run(registration: Registration, admin: Client) -> None:
    shown = registration.changes("--dry-run")
    assert not admin.get("identity", f"/users?name={registration.name}").json()["users"]
    assert endpoints(admin, registration.name) == {}
    done = registration.changes()
    names = [(one["action"], one["kind"], one["name"]) for one in done]
    assert names == [(one["action"], one["kind"], one["name"]) for one in shown]
    assert "would be" not in registration.run("--dry-run").stdout


def test_urls_by_interface(registration: Registration, admin: Client) -> None:
    registration.changes("--internal-url", "http://10.0.0.1:8774/")
    found = endpoints(admin, registration.name)
    assert found["compute", "public"] == f"{URL}/compute/v2.1"
    assert found["compute", "internal"] == found["compute", "admin"] == "http://10.0.0.1:8774/compute/v2.1"


def test_replaced_endpoints_can_be_restored(registration: Registration, admin: Client) -> None:
    registration.changes()
    before = endpoints(admin, registration.name)
    other = "https://other.example"
    refused = registration.run("--url", other)
    assert refused.returncode == 1
    assert f"compute public: {URL}/compute/v2.1" in refused.stderr
    assert "--replace" in refused.stderr
    assert endpoints(admin, registration.name) == before
    replaced = registration.changes("--url", other, "--replace")
    assert set(endpoints(admin, registration.name).values()) == {f"{other}/compute/v2.1", f"{other}/placement"}
    undo = [one["undo"] for one in replaced if one["undo"]]
    assert len(undo) == len(before)
    assert all(command.startswith(f"openstack endpoint set --url {URL}/") for command in undo)
    shown = registration.run("--replace").stdout
    assert "To revert the changes of the catalogue:" in shown
    assert f"openstack endpoint set --url {other}/placement " in shown
    assert endpoints(admin, registration.name) == before


def test_disabled_endpoint_is_that_of_another_service(registration: Registration, admin: Client) -> None:
    registration.changes()
    one = admin.get("identity", f"/endpoints?region_id={registration.name}").json()["endpoints"][0]
    path = f"/endpoints/{one['id']}"
    assert admin.request("PATCH", "identity", path, json={"endpoint": {"enabled": False}}).status == 200
    assert "(disabled)" in registration.run().stderr
    (changed,) = (change for change in registration.changes("--replace") if change["action"] == "updated")
    assert changed["undo"].endswith("--disable")
    assert admin.get("identity", path).json()["endpoint"]["enabled"]


def test_other_password(registration: Registration, keystone: CloudProcess) -> None:
    registration.changes()
    new = {"KILONOVA_IDENTITY__PASSWORD": "another password"}
    refused = registration.run(**new)
    assert refused.returncode == 1
    assert f"the user {registration.name} exists with another password" in refused.stderr
    assert registration.actions("--update-password", **new) == {("updated", "user")}
    assert registration.actions("--update-password", **new) == set()


def test_domains(registration: Registration, admin: Client) -> None:
    domain = admin.post("identity", "/domains", {"domain": {"name": "customers"}}).json()["domain"]
    try:
        granted = [
            one["name"] for one in registration.changes("--domain", "customers") if "of the domain" in one["name"]
        ]
        assert granted == [f"member of {registration.name} in all projects of the domain customers"]
        assert "the domain Default" in str([one for one in registration.changes() if one["action"] == "created"])
        assert registration.actions("--domain", domain["id"]) == set()
        assert "there is no domain 'nowhere'" in registration.run("--domain", "nowhere").stderr
    finally:
        admin.request("PATCH", "identity", f"/domains/{domain['id']}", json={"domain": {"enabled": False}})
        admin.delete("identity", f"/domains/{domain['id']}")


def test_built_in_services_get_endpoints(registration: Registration, admin: Client) -> None:
    registration.changes(KILONOVA_VOLUME__URL="built-in", KILONOVA_IMAGE__URL="built-in")
    found = endpoints(admin, registration.name)
    assert {kind for kind, _ in found} == {"compute", "placement", "image", "block-storage", "volumev3"}
    assert found["block-storage", "public"] == f"{URL}/volume/v3"
    assert found["image", "public"] == f"{URL}/image"


def test_services_that_kilonova_will_not_find(registration: Registration) -> None:
    done = registration.run(KILONOVA_VOLUME__URL="")
    assert done.returncode == 0
    assert "Warning: the catalogue has no internal endpoint of the type block-storage" in done.stderr


def test_clouds_yaml(registration: Registration, tmp_path: Path) -> None:
    auth = dict(registration.keystone.clouds["kilonova"]["auth"])
    file, secure = tmp_path / "clouds.yaml", tmp_path / "secure.yaml"
    secure.write_text(yaml.safe_dump({"clouds": {"mine": {"auth": {"password": auth.pop("password")}}}}))
    file.write_text(yaml.safe_dump({"clouds": {"mine": {"auth": auth}}}))
    places = {"OS_CLIENT_CONFIG_FILE": str(file), "OS_CLIENT_SECURE_FILE": str(secure)}
    done = registration.run("--os-cloud", "mine", "--dry-run", login=places)
    assert done.returncode == 0, done.stderr
    refused = registration.run("--os-cloud", "yours", login=places)
    assert f"--os-cloud: 'yours' is not one of mine in {file}" in refused.stderr


def test_other_ways_to_log_in(registration: Registration, admin: Client) -> None:
    auth = registration.keystone.clouds["kilonova"]["auth"]
    scope = {name: value for name, value in login_variables(auth).items() if "PROJECT" in name}
    token = {"OS_TOKEN": admin.token, "OS_AUTH_TYPE": "v3token", **scope}
    assert registration.run("--dry-run", login=token).returncode == 0
    user = admin.get("identity", "/users?name=admin").json()["users"][0]["id"]
    body = {"application_credential": {"name": registration.name}}
    made = admin.post("identity", f"/users/{user}/application_credentials", body).json()["application_credential"]
    by_id = {"OS_APPLICATION_CREDENTIAL_ID": made["id"], "OS_APPLICATION_CREDENTIAL_SECRET": made["secret"]}
    assert registration.run("--dry-run", login=by_id).returncode == 0
    by_name = {
        "OS_AUTH_TYPE": "v3applicationcredential",
        "OS_APPLICATION_CREDENTIAL_NAME": registration.name,
        "OS_APPLICATION_CREDENTIAL_SECRET": made["secret"],
        "OS_USERNAME": "admin",
        "OS_USER_DOMAIN_NAME": "Default",
    }
    assert registration.run("--dry-run", login=by_name).returncode == 0
    system = {**login_variables(auth), "OS_SYSTEM_SCOPE": "all"}
    assert registration.run("--dry-run", login=system).returncode == 0


@pytest.mark.parametrize(
    "options, settings, message",
    [
        ((), {"OS_PASSWORD": "wrong"}, "Keystone refused the login of admin"),
        ((), {"OS_PASSWORD": ""}, "OS_PASSWORD: not set"),
        ((), {"OS_USERNAME": ""}, "no administrator: set OS_USERNAME"),
        ((), {"OS_AUTH_TYPE": "v3oidcpassword"}, "auth_type: 'v3oidcpassword' is not one of password"),
        ((), {"OS_AUTH_URL": "http://127.0.0.1:1"}, "127.0.0.1:1 cannot be reached"),
        ((), {"OS_AUTH_URL": "http://192.0.2.1:5000/v3"}, "passwords go to 192.0.2.1:5000 without encryption"),
        ((), {"KILONOVA_IDENTITY__PASSWORD": ""}, "identity.password: not set"),
        ((), {"KILONOVA_IDENTITY__AUTH_URL": ""}, "identity.auth_url: set the URL of Keystone"),
        ((), {"KILONOVA_IDENTITY__USER_DOMAIN_NAME": "nowhere"}, "there is no domain 'nowhere'"),
        (("--url", "kilonova.example"), {}, "--url: 'kilonova.example' is not an http:// or https:// URL"),
    ],
)
def test_refusals(keystone: CloudProcess, options: tuple[str, ...], settings: dict[str, str], message: str) -> None:
    refused = Registration(keystone, "refused").run(*options, login={}, **all_settings(keystone, settings))
    assert refused.returncode == 1
    assert message in refused.stderr


def all_settings(keystone: CloudProcess, settings: Mapping[str, str]) -> dict[str, str]:
    return {**login_variables(keystone.clouds["kilonova"]["auth"]), **settings}


def test_administrator_without_the_role(registration: Registration) -> None:
    member = login_variables(registration.keystone.clouds["kilonova-demo"]["auth"])
    refused = registration.run(login=member)
    assert refused.returncode == 1
    assert "demo may not list domains; that needs the role admin in Keystone" in refused.stderr


def test_registers_limits_for_the_driver_that_uses_them(registration: Registration, admin: Client) -> None:
    unified = {"KILONOVA_QUOTA__DRIVER": "unified", "KILONOVA_QUOTA__INSTANCES": "7"}
    assert ("created", "registered limit") not in registration.actions("--dry-run")
    assert ("created", "registered limit") in registration.actions("--dry-run", **unified)
    assert ("created", "registered limit") in registration.actions(**unified)
    path = f"/registered_limits?region_id={registration.name}"
    found = admin.get("identity", path).json()["registered_limits"]
    limits = {one["resource_name"]: one["default_limit"] for one in found}
    assert (limits["servers"], limits["class:VCPU"]) == (7, 20)
    unified["KILONOVA_QUOTA__INSTANCES"] = "8"
    assert registration.actions(**unified) == set()
    assert admin.get("identity", path).json()["registered_limits"] == found
