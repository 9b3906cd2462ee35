"""Makes the data directory of the present schema that README.md describes, in this directory.

.venv/bin/python tests/cli/data_directories/make.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import apsw

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from tests.support.cloud_process import Client, CloudProcess  # noqa: E402
from tests.support.virt_hosts import wait_until  # noqa: E402

from kilonova.store.migrations.head import HEAD  # noqa: E402

# Steps of simulated hosts at which the operations of the busy servers are when the process is killed.
BUSY_STEPS = ("spawn", "power_off", "receive", "expect", "destroy", "attach_disk")
SLOW_HOSTS = {f"KILONOVA_SIM__LATENCY__{step.upper()}": "600" for step in BUSY_STEPS}
BUSY = ("busy-stop", "busy-resize", "busy-live", "busy-delete", "busy-attach")
TRANSIENT = ("log", "lock", "endpoints.json")


def new_volume(client: Client) -> str:
    answer = client.post("volume", "/volumes", {"volume": {"size": 1}}, version="3.0")
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    path = f"/volumes/{volume_id}"
    wait_until(
        lambda: client.get("volume", path, version="3.0").json()["volume"]["status"] == "available",
        f"volume {volume_id} is available",
    )
    return volume_id


def attach(client: Client, server_id: str, volume_id: str) -> None:
    body = {"volumeAttachment": {"volumeId": volume_id}}
    answer = client.post("compute", f"/servers/{server_id}/os-volume_attachments", body, version="2.1")
    assert answer.status == 200, answer.body


def act(client: Client, server_id: str, body: object) -> None:
    answer = client.post("compute", f"/servers/{server_id}/action", body)
    assert answer.status == 202, answer.body


def make_servers(client: Client) -> dict[str, str]:
    """Servers at rest; returns their ids by name."""
    ids = {name: client.boot(name) for name in ("steady", "stopped", "resized", "shelved", "deleted", *BUSY)}
    for server_id in ids.values():
        client.wait(server_id, status="ACTIVE")
    attach(client, ids["steady"], new_volume(client))
    act(client, ids["stopped"], {"os-stop": None})
    act(client, ids["resized"], {"resize": {"flavorRef": "2"}})
    act(client, ids["shelved"], {"shelve": None})
    for name, status in (("stopped", "SHUTOFF"), ("resized", "VERIFY_RESIZE"), ("shelved", "SHELVED_OFFLOADED")):
        client.wait(ids[name], status=status)
    assert client.delete("compute", f"/servers/{ids['deleted']}").status == 204
    wait_until(lambda: client.get("compute", f"/servers/{ids['deleted']}").status == 404, "the server is deleted")
    return ids


def begin_operations(client: Client, ids: dict[str, str], volume_id: str) -> None:
    client.boot("busy-boot")
    act(client, ids["busy-stop"], {"os-stop": None})
    act(client, ids["busy-resize"], {"resize": {"flavorRef": "2"}})
    act(client, ids["busy-live"], {"os-migrateLive": {"host": None, "block_migration": "auto"}})
    assert client.delete("compute", f"/servers/{ids['busy-delete']}").status == 204
    attach(client, ids["busy-attach"], volume_id)


def wait_for_hosts(data: Path, operations: int) -> None:
    """Wait until each unfinished operation waits for a host."""
    waiting = "SELECT COUNT(*) FROM operations WHERE finished_at IS NULL AND state = 'running'"
    connection = apsw.Connection(str(data / "kilonova.db"))
    connection.set_busy_timeout(60_000)
    wait_until(
        lambda: connection.execute(waiting).fetchone() == (operations,), f"{operations} operations wait for a host"
    )
    connection.close()


def pack(data: Path) -> Path:
    for path in list(data.iterdir()):
        if path.name in TRANSIENT or path.suffix == ".log":
            path.unlink()
        elif path.suffix == ".db":
            connection = apsw.Connection(str(path))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
            connection.close()
    archive = HERE / f"schema-{HEAD}.tar.xz"
    command = ["tar", "--sparse", "--owner=0", "--group=0", "-I", "xz -9e", "-cf", str(archive), data.name]
    subprocess.run(command, cwd=data.parent, check=True)
    return archive


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        with CloudProcess(data, "--hosts", "3", fresh=True) as cloud:
            client = cloud.client("kilonova-demo-admin", version="2.37")
            ids, volume_id = make_servers(client), new_volume(client)
            cloud.stop()
            cloud.environ |= SLOW_HOSTS
            cloud.start()
            begin_operations(cloud.client("kilonova-demo-admin", version="2.37"), ids, volume_id)
            wait_for_hosts(data, operations=6)
            cloud.kill()
        print(pack(data))


if __name__ == "__main__":
    main()
