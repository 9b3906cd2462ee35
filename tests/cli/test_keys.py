"""`kilonova keys`, in clouds that run."""

from __future__ import annotations

import threading
from pathlib import Path

from kilonova.identity.token_keys import is_key
from tests.support.cloud_process import Client, CloudProcess, kilonova

REQUESTS_PER_ROTATION = 25


class Load(threading.Thread):
    """A client that logs in and lists servers until `stop`, alternately with its first and with a new token."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        self.statuses: list[int] = []
        self.ended = threading.Event()
        self.progress = threading.Condition()

    def run(self) -> None:
        first = self.client.token
        while not self.ended.is_set():
            login = self.client.log_in()
            tokens = (first, login.headers.get("x-subject-token", ""))
            listed = [self.client.get("compute", "/servers", headers={"X-Auth-Token": token}) for token in tokens]
            with self.progress:
                self.statuses += [login.status, *(response.status for response in listed)]
                self.progress.notify_all()

    def wait_for_requests(self, count: int) -> None:
        with self.progress:
            wanted = len(self.statuses) + count
            assert self.progress.wait_for(lambda: len(self.statuses) >= wanted, timeout=120)


def test_rotation_under_load_refuses_no_request(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with CloudProcess(tmp_path / "data") as cloud:
        loads = [Load(cloud.client()) for _ in range(2)]
        for load in loads:
            load.start()
        for _ in range(3):
            for load in loads:
                load.wait_for_requests(REQUESTS_PER_ROTATION)
            rotated = kilonova("keys", "rotate", "--data", data)
            assert rotated.returncode == 0, rotated.stderr
            assert "dropped     no older key" in rotated.stdout
        for load in loads:
            load.wait_for_requests(REQUESTS_PER_ROTATION)
            load.ended.set()
        for load in loads:
            load.join()
            assert set(load.statuses) == {200, 201}
        shown = kilonova("keys", "list", "--data", data)
        assert shown.stdout.count("accepts older tokens") == 3
        assert shown.stdout.count("signs new tokens") == 1
        keys = [line.split()[0] for line in (cloud.data / "fernet.keys").read_text().splitlines()]
        assert all(is_key(key) for key in keys)
        assert not any(key in text for key in keys for text in (shown.stdout, rotated.stdout, cloud.log))


def test_dropped_keys_end_all_tokens(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        client = cloud.client()
        server_id = client.boot()
        client.wait(server_id, status="ACTIVE")
        dropped = kilonova("keys", "rotate", "--drop-old-keys", "--data", str(cloud.data))
        assert "kept        no older key" in dropped.stdout
        second = cloud.client()
        assert second.get("compute", "/servers").status == 200, "a new login"
        assert client.get("compute", "/servers").status == 401, "the cache was dropped too"
        second.wait(second.boot("second"), status="ACTIVE")


def test_configured_keys_are_not_changed(tmp_path: Path) -> None:
    key = kilonova("keys", "generate").stdout.strip()
    assert is_key(key)
    config = tmp_path / "kilonova.toml"
    config.write_text(f'[identity]\ntoken_keys = ["{key}"]\n')
    for command in ("list", "rotate"):
        refused = kilonova("keys", command, "--data", str(tmp_path), "--config", str(config))
        assert refused.returncode == 1
        assert "identity.token_keys in the configuration has the keys" in refused.stderr
        assert key not in refused.stderr
        missing = kilonova("keys", command, "--data", str(tmp_path))
        assert "fernet.keys does not exist" in missing.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["kilonova.toml"]


def test_credentials_survive_rotations_of_their_keys(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        data, client = str(cloud.data), cloud.client()
        missing = kilonova("keys", "rotate-credentials", "--data", data)
        assert missing.returncode == 1
        assert "credential.keys does not exist" in missing.stderr
        body = {"credential": {"type": "totp", "blob": "hidden text"}}
        made = client.post("identity", "/credentials", body).json()["credential"]
        keys = cloud.data / "credential.keys"
        first = keys.read_text()
        for _ in range(3):
            rotated = kilonova("keys", "rotate-credentials", "--data", data)
            assert rotated.stdout == "encrypted   1 credentials with the newest key\n", rotated.stderr
            shown = client.get("identity", f"/credentials/{made['id']}").json()["credential"]
            assert shown["blob"] == "hidden text"
        # Only the newest key and the one before it are left.
        assert len(keys.read_text().splitlines()) == 2
        assert first.split()[0] not in keys.read_text()
        keys.write_text(first)
        refused = kilonova("keys", "rotate-credentials", "--data", data)
        assert refused.returncode == 1
        assert made["id"] in refused.stderr
        assert first in keys.read_text(), "no key is dropped"
