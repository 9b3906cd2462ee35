"""The hash of a server's image: recorded when it is created, sent to hosts, and compared at every later build."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.compute.servers.actions.test_rebuild import make_image, rebuild
from tests.compute.servers.moves import HOST, dump_server, make_unreachable, newest_migration, run_move
from tests.compute.servers.shelved import boot_shelved, list_snapshots
from tests.compute.servers.support import guest_on
from tests.support import run
from tests.support.full_cloud import WITHOUT_LIVENESS_CACHE, FullCloud, full_cloud
from tests.support.volumes import (
    InterceptedVolumeService,
    block_device,
    boot_from,
    expected_checksum,
    root_volume_id,
    show_volume,
    volume_checksum,
)

OTHER_HASH = "0" * 128


async def shown_hash(c: FullCloud, image_id: str) -> str:
    image = (await c.get(f"/images/{image_id}", as_="admin", root="/image/v2")).json()
    return f"{image['os_hash_algo']}:{image['os_hash_value']}"


async def recorded_hashes(c: FullCloud, server_id: str) -> tuple[str | None, str | None]:
    row = await c.db.fetch_one("SELECT image_hash, shelved_image_hash FROM servers WHERE id = $1", server_id)
    assert row is not None
    return row["image_hash"], row["shelved_image_hash"]


async def replace_image(c: FullCloud, image_id: str, value: str | None = OTHER_HASH) -> None:
    """Pretend that the image service gave the id to another image."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE images SET hash_value = $1 WHERE id = $2", value, image_id)


async def replace_data(c: FullCloud, image_id: str, data: bytes) -> None:
    (path,) = (c.services.config.data_dir / "images").glob(f"{image_id}.*")
    path.write_bytes(data)
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE images SET size = $1 WHERE id = $2", len(data), image_id)


def sent_hash(c: FullCloud, server: dict[str, Any]) -> str:
    image = guest_on(c, server[HOST], server["id"]).image
    assert image is not None
    return image.hash


def test_hash_is_recorded_and_sent_to_the_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            data = b"other image"
            other = await make_image(c, data=data)
            server = await c.boot_active()
            first = await shown_hash(c, c.image_id)
            assert await recorded_hashes(c, server["id"]) == (first, None)
            assert sent_hash(c, server) == first
            _, rebuilt = await rebuild(c, server["id"], imageRef=other)
            expected = f"sha512:{hashlib.sha512(data).hexdigest()}"
            assert await recorded_hashes(c, server["id"]) == (expected, None)
            assert sent_hash(c, rebuilt) == expected

    run(scenario())


def test_image_without_hash_is_not_checked(database_url: str) -> None:
    """The hash is the checksum if the image service has no other one."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            await replace_image(c, c.image_id, None)
            checksum = await c.db.fetch_value("SELECT checksum FROM images WHERE id = $1", c.image_id)
            server = await c.boot_active()
            assert await recorded_hashes(c, server["id"]) == (f"md5:{checksum}", None)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE images SET checksum = NULL WHERE id = $1", c.image_id)
            server = await c.boot_active()
            assert await recorded_hashes(c, server["id"]) == (None, None)
            assert sent_hash(c, server) == ""

    run(scenario())


def test_evacuation_refuses_image_that_was_replaced(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **WITHOUT_LIVENESS_CACHE) as c:
            server = await c.boot_active()
            server_id, expected = server["id"], await shown_hash(c, c.image_id)
            await make_unreachable(c, server[HOST])
            before = await dump_server(c, server_id)
            await replace_image(c, c.image_id)
            await run_move(c, server_id, "evacuate", {})
            error = (await newest_migration(c, server_id))["error"]
            assert f"Image {c.image_id} was replaced" in error
            assert expected in error
            assert await dump_server(c, server_id) == before
            await replace_image(c, c.image_id, expected.removeprefix("sha512:"))
            after = await run_move(c, server_id, "evacuate", {})
            assert after[HOST] != server[HOST]
            assert sent_hash(c, after) == expected

    run(scenario())


def test_unshelve_refuses_snapshot_that_was_replaced(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await boot_shelved(c))["id"]
            (snapshot,) = await list_snapshots(c)
            expected = f"sha512:{snapshot['os_hash_value']}"
            assert (await recorded_hashes(c, server_id))[1] == expected
            await replace_image(c, snapshot["id"])
            refused = await run_move(c, server_id, "unshelve", None)
            assert refused["status"] == "SHELVED_OFFLOADED"
            assert f"Image {snapshot['id']} was replaced" in refused["fault"]["message"]

            # The image service shows the recorded hash, but the host gets other data.
            await replace_image(c, snapshot["id"], snapshot["os_hash_value"])
            (path,) = (c.services.config.data_dir / "images").glob(f"{snapshot['id']}.*")
            content = path.read_bytes()
            await replace_data(c, snapshot["id"], b'{"kilonova-sim disk": "of a stranger"}')
            refused = await run_move(c, server_id, "unshelve", None)
            assert refused["status"] == "SHELVED_OFFLOADED"
            assert "the data of the image is damaged" in refused["fault"]["message"]
            assert await c.guests() == {}
            await replace_data(c, snapshot["id"], content)
            assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE"
            assert (await recorded_hashes(c, server_id))[1] is None

    run(scenario())


# Volumes of servers


def replace_before(c: FullCloud, image_id: str, method: str, end: str) -> None:
    """Replace the image just before compute sends such a request to the volume service."""

    async def hook(sent: str, path: str, body: Any) -> None:
        if sent == method and path.endswith(end):
            await replace_image(c, image_id)

    InterceptedVolumeService(c).hook = hook


def test_boot_refuses_volume_of_an_image_that_was_replaced(database_url: str) -> None:
    """The volume service would take the hash of the other image."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            root = block_device("image", c.image_id, volume_size=1, boot_index=0)
            replace_before(c, c.image_id, "POST", "/volumes")
            made = await c.boot(imageRef="", block_device_mapping_v2=[root], networks="none")
            shown = await c.wait_until_settled(made["id"])
            assert shown["status"] == "ERROR"
            assert f"Image {c.image_id} was replaced" in shown["fault"]["message"]
            assert await c.guests() == {}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes WHERE status <> 'deleting'") == 0
            # The next server records the hash of the other image, and its data is damaged for that hash.
            made = await c.boot(imageRef="", block_device_mapping_v2=[root], networks="none")
            shown = await c.wait_until_settled(made["id"])
            assert (shown["status"], "is damaged" in shown["fault"]["message"]) == ("ERROR", True)

    run(scenario())


def test_rebuild_keeps_volume_if_the_image_was_replaced(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            old, new = b"old" * 1000, b"new" * 1000
            server = await boot_from(
                c, block_device("image", await make_image(c, data=old), volume_size=1), networks="none"
            )
            other = await make_image(c, data=new)
            replace_before(c, other, "POST", "/attachments")
            _, refused = await rebuild(c, server["id"], imageRef=other)
            assert refused["status"] == "ACTIVE"
            volume_id = root_volume_id(server)
            assert (await show_volume(c, volume_id))["status"] == "in-use"
            assert await volume_checksum(c, volume_id) == expected_checksum(old)
            error = await c.db.fetch_value("SELECT error FROM operations WHERE kind = 'reimage'")
            assert f"Image {other} was replaced" in str(error)

    run(scenario())
