"""Access rules of application credentials in a running cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cloud_process import Client, CloudProcess, Response


def log_in(client: Client, *rules: tuple[str, str, str]) -> tuple[str, str]:
    """The token and the secret of a new application credential that has only these rules."""
    validated = client.get("identity", "/auth/tokens", headers={"X-Subject-Token": client.token}).json()["token"]
    access_rules = [{"service": service, "method": method, "path": path} for service, method, path in rules]
    body = {"application_credential": {"name": str(rules), "access_rules": access_rules}}
    made = client.post("identity", f"/users/{validated['user']['id']}/application_credentials", body)
    assert made.status == 201, made.body
    credential = made.json()["application_credential"]
    given = {"id": credential["id"], "secret": credential["secret"]}
    identity = {"methods": ["application_credential"], "application_credential": given}
    url = client.endpoints["auth_url"] + "/auth/tokens"
    answer = client.request_url("POST", url, json={"auth": {"identity": identity}})
    assert answer.status == 201, answer.body
    return answer.headers["x-subject-token"], credential["secret"]


def test_request_that_a_rule_names_uses_other_services(tmp_path: Path) -> None:
    """Compute gets images, networks and volumes for a token that may call only compute."""
    with CloudProcess(tmp_path / "data") as cloud:
        client = cloud.client()
        rules = (
            ("compute", "POST", "/v2.1/servers"),
            ("compute", "GET", "/v2.1/servers/{server_id}"),
            ("compute", "POST", "/v2.1/servers/{server_id}/os-volume_attachments"),
        )
        token, secret = log_in(client, *rules)

        def call(method: str, service: str, path: str, body: Any = None) -> Response:
            headers = {"X-Auth-Token": token}
            return client.request(method, service, path, json=body, headers=headers, version="2.37" if body else None)

        image = client.get("image", "/images").json()["images"][0]["id"]
        volume = client.post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]["id"]
        server = {"name": "s", "flavorRef": "1", "imageRef": image, "networks": "auto"}
        booted = call("POST", "compute", "/servers", {"server": server})
        assert booted.status == 202, booted.body
        server_id = booted.json()["server"]["id"]
        client.wait(server_id, status="ACTIVE")
        assert call("GET", "compute", f"/servers/{server_id}").status == 200
        attachment = {"volumeAttachment": {"volumeId": volume}}
        attached = call("POST", "compute", f"/servers/{server_id}/os-volume_attachments", attachment)
        assert attached.status == 200, attached.body
        for service, path in (
            ("compute", "/servers"),
            ("compute", "/flavors"),
            ("image", f"/images/{image}"),
            ("image", "/images"),
            ("network", "/networks"),
            ("volume", f"/volumes/{volume}"),
            ("placement", "/resource_classes"),
            ("identity", "/auth/projects"),
        ):
            assert client.get(service, path, headers={"X-Auth-Token": token}).status == 401, path
        # A user cannot pass for a service.
        own = {"X-Auth-Token": token, "X-Service-Token": client.token}
        assert client.get("compute", "/servers", headers=own).status == 401
        assert client.delete("compute", f"/servers/{server_id}", headers={"X-Auth-Token": token}).status == 401
        logs = cloud.log + (cloud.data / "audit.log").read_text()
        assert secret not in logs
        assert token not in logs
