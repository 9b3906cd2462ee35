"""Users of clouds.yaml change their passwords."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.cloud_process import Client, CloudProcess, kilonova

OPENSTACK = Path(sys.executable).with_name("openstack")
NEW = "a new password, not generated"


def openstack(cloud: CloudProcess, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    settings = {"OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml"), "OS_CLOUD": "kilonova-demo", **environ}
    command = [str(OPENSTACK), *arguments]
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)


def write_password(cloud: CloudProcess, user: str, password: str) -> None:
    file = cloud.data / "secrets.json"
    secrets = json.loads(file.read_text())
    secrets["passwords"][user] = password
    file.write_text(json.dumps(secrets))


def test_changed_password_survives_restarts(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        client = cloud.client()
        old = client.auth["password"]
        assert client.get("compute", "/servers").status == 200
        done = openstack(cloud, "user", "password", "set", "--original-password", old, "--password", NEW)
        assert done.returncode == 0, done.stderr
        assert client.get("compute", "/servers").status == 401, "tokens of before are revoked"
        assert client.log_in().status == 401
        cloud.stop()
        cloud.start()
        assert "password" not in cloud.clouds["kilonova-demo"]["auth"]
        assert cloud.clouds["kilonova-demo-reader"]["auth"]["password"]
        assert (cloud.data / "clouds.yaml").read_text().count("# The user has changed the password.") == 1
        listed = openstack(cloud, "server", "list", "-f", "json", OS_PASSWORD=NEW)
        assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr
        assert NEW not in cloud.log
        assert old not in cloud.log


def test_password_in_secrets_file_is_used_again(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        admin = cloud.client("kilonova")
        users = admin.get("identity", "/users?name=admin").json()["users"]
        changed = admin.request("PATCH", "identity", f"/users/{users[0]['id']}", json={"user": {"password": NEW}})
        assert changed.status == 200
        why = ("why", "--data", str(cloud.data), "none")
        refused = kilonova(*why)
        assert refused.returncode == 1
        assert f"write the new one into {cloud.data / 'secrets.json'}" in refused.stderr
        write_password(cloud, "admin", NEW)
        assert "write the new one" not in kilonova(*why).stderr
        cloud.stop()
        cloud.start()
        assert cloud.clouds["kilonova"]["auth"]["password"] == NEW
        assert cloud.client("kilonova").get("compute", "/servers").status == 200


def statuses_of_logins(admin: Client, clients: Sequence[Client]) -> Counter[int]:
    """Log the clients' user in by each of them, over and over, while another role of the user is given and removed."""
    (user,) = {client.auth["username"] for client in clients}
    role_id = admin.post("identity", "/roles", {"role": {"name": "other"}}).json()["role"]["id"]
    user_id = admin.get("identity", f"/users?name={user}").json()["users"][0]["id"]
    path = f"/projects/{clients[0].project_id}/users/{user_id}/roles/{role_id}"
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def log_in(client: Client) -> None:
        while not over.is_set():
            statuses[client.log_in().status] += 1

    threads = [threading.Thread(target=log_in, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    removals = 0
    while removals < 20 or statuses.total() < 40:
        assert admin.put("identity", path, None).status == 204
        assert admin.delete("identity", path).status == 204
        removals += 1
    over.set()
    for thread in threads:
        thread.join()
    return statuses


def test_every_login_succeeds_while_another_role_of_the_user_is_removed(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        statuses = statuses_of_logins(cloud.client("kilonova"), [cloud.client() for _ in range(3)])
        assert set(statuses) == {201}, statuses
