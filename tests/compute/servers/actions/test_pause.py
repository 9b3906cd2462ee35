"""pause and unpause: states, actions of a paused server, refusals, and unreachable hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.compute import host_calls
from kilonova.compute.servers import states as table
from kilonova.policy import Policy
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations
from tests.compute.servers.actions.test_suspend import conflict_message, run_action, states
from tests.compute.servers.moves import HOST, make_reachable, make_unreachable
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import cloud, fault, put_server
from tests.support.full_cloud import full_cloud
from tests.support.volumes import block_device, boot_from, make_volume


def test_paused_server_attaches_volumes_and_live_migrates(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            server_id = server["id"]
            await run_action(c, server_id, "pause")
            volume_id = await make_volume(c)
            body = {"volumeAttachment": {"volumeId": volume_id}}
            assert (await c.post(f"/servers/{server_id}/os-volume_attachments", body)).status == 200
            await c.wait_until_settled(server_id)
            graces = {"host": None, "block_migration": "auto"}
            shown = await run_action(c, server_id, "os-migrateLive", graces, as_="admin", version="2.96")
            assert states(shown) == ("PAUSED", "paused", 3)
            assert shown[HOST] != server[HOST]
            assert (await c.guests())[server_id] == (shown[HOST], "paused")
            assert states(await run_action(c, server_id, "unpause")) == ("ACTIVE", "active", 1)

    run(scenario())


def test_create_image_is_refused_for_paused_volume_backed_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await boot_from(c, block_device("image", c.image_id, volume_size=1))
            await run_action(c, server["id"], "pause")
            assert (await conflict_message(c, server["id"], "createImage", {"name": "x"})).endswith("vm_state paused")

    run(scenario())


def test_pause_on_unreachable_host_is_undone_when_it_is_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 0.3)

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure(server[HOST], "pause", "hang", 1, None)
                assert (await act(c, server["id"], "pause")).status == 202
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="pausing")
            await make_unreachable(c, server[HOST])
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "did not respond" in shown["fault"]["message"]) == ("ACTIVE", True)
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            assert (await c.guests())[server["id"]][1] == "running"

    run(scenario())


@pytest.mark.parametrize(
    ("action", "vm_state", "opposite"), [("pause", "active", "unpause"), ("unpause", "paused", "pause")]
)
def test_pause_and_unpause_have_a_policy_each(
    sqlite_url: str, tmp_path: Path, action: str, vm_state: str, opposite: str
) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, "s", host="host1", vm_state=vm_state)
            for as_, status in (("reader", 403), ("other", 404)):
                assert (await act(c, "s", action, as_=as_)).status == status
            path = tmp_path / "policy.yaml"
            for forbidden, status in ((action, 403), (opposite, 202)):
                path.write_text(f'"os_compute_api:os-pause-server:{forbidden}": "role:admin"\n')
                c.services.policy = Policy(path)
                assert (await act(c, "s", action)).status == status
            assert await c.db.fetch("SELECT kind, action FROM operations") == [{"kind": action, "action": action}]

    run(scenario())


@pytest.mark.parametrize("body", [None, {}, {"any": ["thing"]}, "text"])
def test_pause_ignores_its_body(sqlite_url: str, body: Any) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, "s", host="host1")
            assert (await act(c, "s", "pause", body)).status == 202

    run(scenario())


def test_only_active_server_is_paused_and_only_paused_one_unpaused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for vm_state in table.STATUS.keys() - {table.DELETED}:
                await put_server(c.db, vm_state, host="host1", vm_state=vm_state)
                for action, allowed in (("pause", table.ACTIVE), ("unpause", table.PAUSED)):
                    answer = await act(c, vm_state, action)
                    if vm_state == allowed:
                        assert answer.status == 202
                        async with c.db.transaction() as tx:
                            await tx.execute("UPDATE operations SET finished_at = 1")
                        continue
                    message = f"Cannot '{action}' instance {vm_state} while it is in vm_state {vm_state}"
                    assert fault(answer) == (409, "conflictingRequest", message)

    run(scenario())
