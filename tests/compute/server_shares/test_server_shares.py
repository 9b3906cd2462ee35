"""File shares of servers over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from kilonova.hosts.messages import Share
from kilonova.identity.client import Auth
from kilonova.ids import new_id
from kilonova.share.client import AccessRule, ShareClient
from tests.compute.operations.support import (
    SHORT_HOST_TIMEOUT,
    finish_operations,
    unfinished_kinds,
    wait_until_finished,
)
from tests.compute.server_shares.support import (
    ROOT,
    VERSION,
    act,
    attach,
    attach_settled,
    boot_stopped,
    detach,
    guest_shares,
    locks_of,
    make_share,
    rules_of,
    until_status,
)
from tests.compute.servers.support import guest_on, rules, sim_store, unreachable_after
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.volume.test_client import Scripted

SHARES = [Share(share_id="s", tag="s", kind="directory", location="machine:/path")]


@proves(
    *("GET /servers/{server_id}/shares", "POST /servers/{server_id}/shares"),
    *("GET /servers/{server_id}/shares/{share_id}", "DELETE /servers/{server_id}/shares/{share_id}"),
)
def test_share_is_attached_used_and_detached(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            answer = await attach(c, server_id, share_id, tag="data")
            assert (answer.status, answer.json()) == (
                201,
                {"share": {"share_id": share_id, "status": "attaching", "tag": "data"}},
            )
            await until_status(c, server_id, share_id, "inactive")
            path = f"/servers/{server_id}/shares"
            (shown,) = (await c.get(path, as_="admin", version=VERSION)).json()["shares"]
            assert shown["export_location"].endswith(f"/{share_id}")
            assert shown["uuid"] != share_id
            (share,) = await guest_shares(c, server_id)
            assert (share.share_id, share.tag, share.kind) == (share_id, "data", "directory")
            assert share.location == shown["export_location"]

            # Only the service sees the rule of its host.
            assert await rules_of(c, share_id) == ["127.0.0.1"]
            listed = await c.get(f"/share-access-rules?share_id={share_id}", root=ROOT)
            assert [rule["access_to"] for rule in listed.json()["access_list"]] == ["******"]
            refused = await c.delete(f"/shares/{share_id}", root=ROOT)
            assert (refused.status, server_id in str(refused.body)) == (403, True)

            await act(c, server_id, "os-start")
            await until_status(c, server_id, share_id, "active")
            assert (await detach(c, server_id, share_id)).status == 409
            await act(c, server_id, "os-stop")
            gone = await detach(c, server_id, share_id)
            assert (gone.status, gone.body) == (200, b"")
            await c.gone(f"{path}/{share_id}", version=VERSION)
            assert (await c.get(path, version=VERSION)).json() == {"shares": []}
            assert await guest_shares(c, server_id) == []
            assert await rules_of(c, share_id) == await locks_of(c, share_id) == []
            assert (await c.delete(f"/shares/{share_id}", root=ROOT)).status == 202
            actions = (await c.get(f"/servers/{server_id}/os-instance-actions", version=VERSION)).json()
            names = [action["action"] for action in actions["instanceActions"]]
            assert names == ["detach_share", "stop", "start", "attach_share", "stop", "create"]

    run(scenario())


def test_default_tag_is_the_id_of_the_share(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            assert (await attach(c, server_id, share_id)).json()["share"]["tag"] == share_id

    run(scenario())


def test_routes_begin_with_their_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            path = f"/servers/{server_id}/shares"
            assert (await c.get(path, version="2.96")).status == 404
            assert (await c.get(path, version="2.97")).status == 200
            assert (await c.get(path, version="2.97", as_="other")).status == 404

    run(scenario())


async def refusal(c: FullCloud, server_id: str, share_id: str, **keys: Any) -> tuple[int, str]:
    answer = await attach(c, server_id, share_id, **keys)
    assert answer.status >= 400
    status, _, message = fault(answer)
    return status, message


def test_attach_refusals(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, other = await make_share(c), await make_share(c, as_="other")
            running = (await c.boot_active())["id"]
            status, message = await refusal(c, running, share_id)
            assert (status, "Cannot 'attach_share'" in message) == (409, True)
            server_id = await boot_stopped(c)
            unknown = new_id()
            assert await refusal(c, server_id, unknown) == (404, f"Share {unknown} could not be found.")
            assert await refusal(c, server_id, other) == (404, f"Share {other} could not be found.")
            assert (await refusal(c, server_id, other, as_="admin"))[0] == 409
            assert (await refusal(c, server_id, share_id, tag="t" * 37))[0] == 400
            assert (await refusal(c, server_id, share_id, tag="no spaces"))[0] == 400
            assert (await refusal(c, server_id, share_id, as_="reader"))[0] == 403
            await attach_settled(c, server_id, share_id, tag="data")
            status, message = await refusal(c, server_id, share_id)
            assert (status, message) == (409, f"Share '{share_id}' is already attached to instance {server_id}.")
            status, message = await refusal(c, server_id, await make_share(c), tag="data")
            assert (status, "with the tag 'data'" in message) == (409, True)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE shares SET status = 'error'")
            assert (await refusal(c, await boot_stopped(c), share_id))[0] == 409
            assert (await detach(c, server_id, unknown)).status == 404

    run(scenario())


def test_host_without_virtiofs_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM provider_traits WHERE trait = 'COMPUTE_STORAGE_VIRTIO_FS'")
            status, message = await refusal(c, server_id, share_id)
            assert (status, "COMPUTE_STORAGE_VIRTIO_FS" in message) == (409, True)

    run(scenario())


ACTIONS: dict[str, Any] = {
    "resize": {"flavorRef": "2"},
    "migrate": None,
    "shelve": None,
    "rebuild": {"imageRef": ""},
    "evacuate": {},
}
RUNNING_ACTIONS: dict[str, Any] = {
    "suspend": None,
    "os-migrateLive": {"host": None, "block_migration": "auto"},
}


def test_moves_of_a_server_with_shares_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            await attach_settled(c, server_id, share_id)

            async def check(actions: dict[str, Any]) -> None:
                for action, body in actions.items():
                    requested = {**body, "imageRef": c.image_id} if action == "rebuild" else body
                    path = f"/servers/{server_id}/action"
                    answer = await c.post(path, {action: requested}, as_="project-admin", version=VERSION)
                    status, _, message = fault(answer)
                    assert (status, "while it has shares" in message) == (409, True), action

            await check(ACTIONS)
            await act(c, server_id, "os-start")
            await check(RUNNING_ACTIONS)
            for action, body in (("pause", None), ("unpause", None), ("reboot", {"type": "HARD"})):
                await act(c, server_id, action, body)
            await act(c, server_id, "rescue")
            assert (await act(c, server_id, "unrescue"))["status"] == "ACTIVE"
            assert len(await guest_shares(c, server_id)) == 1

    run(scenario())


def test_deleted_server_releases_its_shares(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            share_id, servers = await make_share(c), [await boot_stopped(c), await boot_stopped(c)]
            for server_id in servers:
                await attach_settled(c, server_id, share_id)
            assert (await rules_of(c, share_id), len(await locks_of(c, share_id))) == (["127.0.0.1"], 2)
            await c.delete(f"/servers/{servers[0]}")
            await c.wait_until_deleted(servers[0])
            # The other server on the host still needs access.
            assert (await rules_of(c, share_id), len(await locks_of(c, share_id))) == (["127.0.0.1"], 1)
            await act(c, servers[1], "os-start")
            await c.delete(f"/servers/{servers[1]}")
            await c.wait_until_deleted(servers[1])
            assert await rules_of(c, share_id) == await locks_of(c, share_id) == []

    run(scenario())


def test_parallel_attachments_end_with_access(sqlite_url: str) -> None:
    """Servers of one host attach and detach a share at the same time: access follows the last of them."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id = await make_share(c)
            stay, go = await boot_stopped(c), await boot_stopped(c)
            for _ in range(3):
                await attach_settled(c, go, share_id)
                await asyncio.gather(attach_settled(c, stay, share_id), detach(c, go, share_id))
                await c.gone(f"/servers/{go}/shares/{share_id}", version=VERSION)
                assert await rules_of(c, share_id) == ["127.0.0.1"]
                await detach(c, stay, share_id)
                await c.gone(f"/servers/{stay}/shares/{share_id}", version=VERSION)
                assert await rules_of(c, share_id) == []

    run(scenario())


def test_share_that_the_host_refuses_is_in_error(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            with rules(c) as sim:
                sim.add_failure("*", "set_shares", "error", 1, None)
                assert (await attach(c, server_id, share_id)).status == 201
                await wait_until_finished(c.db)
            await until_status(c, server_id, share_id, "error")
            assert "could not add share" in (await c.show(server_id))["fault"]["message"]
            assert await rules_of(c, share_id) == await locks_of(c, share_id) == []
            assert (await attach(c, server_id, share_id)).status == 409
            assert (await detach(c, server_id, share_id)).status == 200
            await c.gone(f"/servers/{server_id}/shares/{share_id}", version=VERSION)
            await attach_settled(c, server_id, share_id)

    run(scenario())


@pytest.mark.parametrize(
    ("states", "status"), [(["applying", "applying"], "inactive"), (["applying", "error"], "error")]
)
def test_attachment_waits_for_the_access_rule(
    states: list[str], status: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real Manila applies an access rule later, or fails to."""
    find = ShareClient.access_rule

    async def later(self: ShareClient, share_id: str, kind: str, access_to: str, auth: Auth) -> AccessRule | None:
        rule = await find(self, share_id, kind, access_to, auth)
        return rule and structs.replace(rule, state=remaining.pop(0) if remaining else rule.state)

    remaining = [*states]
    monkeypatch.setattr(ShareClient, "access_rule", later)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            assert (await attach(c, server_id, share_id)).status == 201
            await until_status(c, server_id, share_id, status)
            await wait_until_finished(c.db)
            assert remaining == []
            attached = status == "inactive"
            assert (len(await rules_of(c, share_id)), len(await guest_shares(c, server_id))) == (attached, attached)
            if not attached:
                assert "could not give the host access" in (await c.show(server_id))["fault"]["message"]

    run(scenario())


@pytest.mark.parametrize(("answered", "expected"), [(503, 503), (403, 403)])
def test_errors_of_the_share_service_are_shown(answered: int, expected: int, sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            scripted = Scripted(answered, {"error": {"message": "not now"}})
            c.services.share = ShareClient(scripted)  # type: ignore[arg-type]
            answer = await attach(c, server_id, share_id)
            assert answer.status == expected, answer.body
            assert (await c.get(f"/servers/{server_id}/shares", version=VERSION)).json() == {"shares": []}

    run(scenario())


def test_undo_on_an_unreachable_host_is_deferred(database_url: str) -> None:
    """The guest may have got the share: the host removes it when it responds again."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            with rules(c) as sim:
                first = sim.add_failure("*", "set_shares", "unreachable", None, None)
                async with unreachable_after(sim, "sim-001", first):
                    assert (await attach(c, server_id, share_id)).status == 201
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        while await unfinished_kinds(c) != ["restore_shares"]:
                            await asyncio.sleep(0.01)
                    await until_status(c, server_id, share_id, "error")
                assert await rules_of(c, share_id) == await locks_of(c, share_id) == []
                with sim_store(c) as store:
                    guest = structs.replace(guest_on(c, "sim-001", server_id), shares=SHARES)
                    store.set_spec("sim-001", guest)
                sim.clear()
            await finish_operations(c)
            assert await guest_shares(c, server_id) == []

    run(scenario())


@pytest.mark.parametrize("status", ["attaching", "detaching"])
def test_share_that_changes_is_not_detached(status: str, sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            share_id, server_id = await make_share(c), await boot_stopped(c)
            await attach_settled(c, server_id, share_id)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE server_shares SET status = $1", status)
            assert (await detach(c, server_id, share_id)).status == 409

    run(scenario())
