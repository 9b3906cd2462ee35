"""Tokens of a real Keystone: whatever it says of user, scope and roles is what policy sees."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.cloud.client import Client as KeystoneClient
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for


def token_of(kilonova: Kilonova, identity: dict[str, Any], scope: Any = None) -> str:
    """A token for these methods, or for a scope."""
    auth = {"identity": identity, **({"scope": scope} if scope else {})}
    client = kilonova.user()
    answer = client.request_url("POST", f"{client.endpoints['auth_url']}/auth/tokens", json={"auth": auth})
    assert answer.status == 201, answer.body
    return answer.headers["x-subject-token"]


def password(cloud: Cloud, name: str) -> dict[str, Any]:
    user = {"name": name, "domain": {"name": "Default"}, "password": cloud.auth(name)["password"]}
    return {"methods": ["password"], "password": {"user": user}}


def get(kilonova: Kilonova, token: str, path: str, version: str | None = None) -> int:
    return kilonova.user().get("compute", path, headers={"X-Auth-Token": token}, version=version).status


def test_scope_decides(kilonova: Kilonova, cloud: Cloud) -> None:
    keystone = cloud.client()
    admin = keystone.get("identity", "/users?name=admin")["users"][0]["id"]
    role = keystone.get("identity", "/roles?name=admin")["roles"][0]["id"]
    keystone.put("identity", f"/system/users/{admin}/roles/{role}")
    keystone.put("identity", f"/domains/default/users/{admin}/roles/{role}")
    system = token_of(kilonova, password(cloud, "admin"), {"system": {"all": True}})
    domain = token_of(kilonova, password(cloud, "admin"), {"domain": {"id": "default"}})
    project = kilonova.admin.token
    member = kilonova.user().token
    unscoped = token_of(kilonova, password(cloud, "demo"), "unscoped")
    hypervisors = "/os-hypervisors"
    assert {
        "system": get(kilonova, system, hypervisors, "2.105"),
        "project": get(kilonova, project, hypervisors, "2.104"),
        "member": get(kilonova, member, hypervisors, "2.104"),
        "unscoped": get(kilonova, unscoped, hypervisors, "2.104"),
    } == {"system": 200, "project": 200, "member": 403, "unscoped": 403}
    assert get(kilonova, domain, "/flavors") == 200
    assert get(kilonova, "gAAAAno-token", "/flavors") == 401


def test_implied_role_counts(kilonova: Kilonova, cloud: Cloud) -> None:
    """A role of the cloud that implies `member` lets its users boot."""
    keystone, name = cloud.client(), f"builder-{uuid.uuid4().hex[:8]}"
    builder = keystone.post("identity", "/roles", {"role": {"name": name}})["role"]["id"]
    member = keystone.get("identity", "/roles?name=member")["roles"][0]["id"]
    project = keystone.get("identity", "/projects?name=demo")["projects"][0]["id"]
    body = {"user": {"name": name, "password": cloud.auth()["password"], "domain_id": "default"}}
    user = keystone.post("identity", "/users", body)["user"]["id"]
    keystone.put("identity", f"/projects/{project}/users/{user}/roles/{builder}")
    scope = {"project": {"id": project}}
    server = server_body({"id": str(uuid.uuid4())}, {"id": str(uuid.uuid4())})

    def boot() -> int:
        headers = {"X-Auth-Token": token_of(kilonova, password(cloud, name), scope)}
        return kilonova.user().post("compute", "/servers", server, headers=headers).status

    assert boot() == 403
    keystone.put("identity", f"/roles/{builder}/implies/{member}")
    assert boot() == 400  # the image does not exist
    keystone.delete("identity", f"/users/{user}")
    keystone.delete("identity", f"/roles/{builder}")


def test_application_credential_with_access_rules(kilonova: Kilonova, cloud: Cloud) -> None:
    keystone = cloud.client("demo", "demo")
    user = _own_user(keystone)
    rule = {"service": "compute", "method": "GET", "path": "/v2.1/servers"}
    body = {"name": uuid.uuid4().hex, "access_rules": [rule]}
    path = f"/users/{user}/application_credentials"
    made = keystone.post("identity", path, {"application_credential": body})["application_credential"]
    given = {"id": made["id"], "secret": made["secret"]}
    token = token_of(kilonova, {"methods": ["application_credential"], "application_credential": given})
    assert get(kilonova, token, "/servers") == 200
    assert get(kilonova, token, "/flavors") == 401
    keystone.delete("identity", f"{path}/{made['id']}")
    wait_for(lambda: get(kilonova, token, "/servers") == 401, "the deleted credential is refused")


def test_trust_acts_for_its_trustor(kilonova: Kilonova, cloud: Cloud) -> None:
    trustor, trustee = cloud.client("demo", "demo"), cloud.client("demo-reader", "demo")
    project = trustor.get("identity", "/auth/projects")["projects"][0]["id"]
    trust = {
        "trustor_user_id": _own_user(trustor),
        "trustee_user_id": _own_user(trustee),
        "project_id": project,
        "impersonation": True,
        "roles": [{"name": "reader"}],
    }
    made = trustor.post("identity", "/OS-TRUST/trusts", {"trust": trust})["trust"]
    identity = {"methods": ["token"], "token": {"id": trustee.token}}
    token = token_of(kilonova, identity, {"OS-TRUST:trust": {"id": made["id"]}})
    assert get(kilonova, token, "/servers") == 200
    server = server_body({"id": str(uuid.uuid4())}, {"id": str(uuid.uuid4())})
    headers = {"X-Auth-Token": token}
    assert kilonova.user().post("compute", "/servers", server, headers=headers).status == 403
    trustor.delete("identity", f"/OS-TRUST/trusts/{made['id']}")


def test_revoked_token_is_refused_within_the_cache_time(kilonova: Kilonova, cloud: Cloud) -> None:
    token = token_of(kilonova, password(cloud, "demo"), {"project": {"name": "demo", "domain": {"name": "Default"}}})
    assert get(kilonova, token, "/servers") == 200
    client = kilonova.user()
    headers = {"X-Auth-Token": token, "X-Subject-Token": token}
    assert client.request("DELETE", "identity", "/auth/tokens", headers=headers).status == 204
    wait_for(lambda: get(kilonova, token, "/servers") == 401, "the revoked token is refused")


def test_move_goes_on_after_the_users_token_has_ended(kilonova: Kilonova, cloud: Cloud) -> None:
    admin = kilonova.admin
    image = next(each for each in admin.get("image", "/images").json()["images"] if each["name"] == "tiny")
    network = admin.get("network", "/networks?name=shared").json()["networks"][0]
    server_id = admin.post("compute", "/servers", server_body(image, network)).json()["server"]["id"]
    before = admin.wait(server_id, 120, status="ACTIVE")["OS-EXT-SRV-ATTR:host"]
    mover = kilonova.admin
    body = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
    answer = mover.post("compute", f"/servers/{server_id}/action", body, version="2.93")
    assert answer.status == 202, answer.body
    headers = {"X-Subject-Token": mover.token}
    assert mover.request("DELETE", "identity", "/auth/tokens", headers=headers).status == 204
    kilonova.wait_until_idle()
    after = admin.get("compute", f"/servers/{server_id}").json()["server"]
    assert (after["status"], after["OS-EXT-SRV-ATTR:host"] != before) == ("ACTIVE", True), after


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/os-quota-sets/{project}", {"quota_set": {"instances": 5}}),
        ("/flavors/{flavor}/action", {"addTenantAccess": {"tenant": "{project}"}}),
    ],
)
def test_project_of_a_request_must_exist(kilonova: Kilonova, path: str, body: dict[str, Any]) -> None:
    admin = kilonova.admin
    flavor = {"name": uuid.uuid4().hex, "vcpus": 1, "ram": 64, "disk": 1, "os-flavor-access:is_public": False}
    flavor_id = admin.post("compute", "/flavors", {"flavor": flavor}).json()["flavor"]["id"]

    def send(project: str) -> int:
        target = path.format(project=project, flavor=flavor_id)
        if "addTenantAccess" in body:
            return admin.post("compute", target, {"addTenantAccess": {"tenant": project}}).status
        return admin.put("compute", target, body).status

    assert send(uuid.uuid4().hex) == 400
    assert send(kilonova.user().project_id) == 200
    assert admin.delete("compute", f"/flavors/{flavor_id}").status == 202


def _own_user(client: KeystoneClient) -> str:
    answer = client.request("identity", "GET", "/auth/tokens", headers={"X-Subject-Token": client.token})
    return str(answer.json()["token"]["user"]["id"])
