"""Checks of the image of a server: it exists, is active, has data, and fits the flavor."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from kilonova.compute.servers import image_checks
from kilonova.compute.servers.server import EmbeddedFlavor
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.image.client import Image
from kilonova.image.seed import CONTENT
from tests.compute.servers.support import create_refusal, make_context
from tests.compute.servers.test_create import UNKNOWN_ID
from tests.support import run
from tests.support.cloud import cloud
from tests.support.full_cloud import FullCloud, full_cloud


class TestImages:
    def test_image_must_exist_be_active_and_fit_the_flavor(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                assert await create_refusal(c, imageRef=UNKNOWN_ID) == (
                    400,
                    f"Can not find requested image {UNKNOWN_ID}.",
                )
                assert (await create_refusal(c, imageRef="no uuid/../x?y"))[0] == 400
                assert (await create_refusal(c, imageRef=""))[0] == 400
                assert (await create_refusal(c, imageRef=...))[0] == 400
                queued = await self.image(c, upload=False)
                assert await create_refusal(c, imageRef=queued) == (400, f"Image {queued} is not active.")
                status, message = await create_refusal(c, imageRef=await self.image(c, min_ram=513))
                assert (status, "memory is too small" in message) == (400, True)
                status, message = await create_refusal(c, imageRef=await self.image(c, min_disk=2))
                assert (status, "disk would be too small" in message) == (400, True)
                large = await self.image(c)
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE images SET size = $1 WHERE id = $2", 2**30 + 1, large)
                assert await create_refusal(c, imageRef=large) == (
                    400,
                    "Flavor's disk is too small for requested image.",
                )
                exact = await self.image(c, min_ram=512, min_disk=1)
                await c.boot_active(imageRef=exact)

        run(scenario())

    def test_private_image_of_another_project_is_not_found(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                private = await self.image(c, as_="other")
                assert await create_refusal(c, imageRef=private) == (400, f"Can not find requested image {private}.")
                await c.wait_until_settled((await c.boot(as_="other", imageRef=private))["id"])

        run(scenario())

    async def image(self, c: FullCloud, upload: bool = True, as_: str = "member", **keys: Any) -> str:
        new = {"name": "i", "disk_format": "raw", "container_format": "bare", "visibility": "private", **keys}
        made = await c.services.image.create(new, as_)
        if upload:
            await c.services.image.upload(made.id, CONTENT, as_)
        return made.id


GIB = 2**30
FLAVOR = EmbeddedFlavor("f", vcpus=1, ram=512, disk=2, ephemeral=0, swap=0, extra_specs={})


@pytest.mark.parametrize(("min_ram", "fits"), [(0, True), (512, True), (513, False)])
def test_memory_of_flavor(min_ram: int, fits: bool) -> None:
    if fits:
        image_checks.check_ram(min_ram, FLAVOR)
        return
    with pytest.raises(BadRequest, match=r"^Flavor's memory is too small for requested image\.$"):
        image_checks.check_ram(min_ram, FLAVOR)


@pytest.mark.parametrize(
    ("min_disk", "size", "message"),
    [
        (0, None, None),
        (2, 2 * GIB, None),
        (3, 0, "its min_disk exceeds the flavor's disk."),
        (0, 2 * GIB + 1, "Flavor's disk is too small for requested image."),
    ],
)
def test_disk_of_flavor(sqlite_url: str, min_disk: int, size: int | None, message: str | None) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            image, ctx = Image(id="i", status="active", min_disk=min_disk, size=size), make_context(c)
            if message is None:
                image_checks.check_disk(ctx, image, FLAVOR)
                return
            with pytest.raises(BadRequest, match=message):
                image_checks.check_disk(ctx, image, FLAVOR)

    run(scenario())


def test_flavor_without_disk_needs_permission_and_fits_all_images(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            image = Image(id="i", status="active", min_disk=100, size=100 * GIB)
            flavor = structs.replace(FLAVOR, disk=0)
            image_checks.check_disk(make_context(c, "admin"), image, flavor)
            with pytest.raises(Forbidden, match=image_checks.ZERO_DISK):
                image_checks.check_disk(make_context(c), image, flavor)

    run(scenario())


def test_image_without_data_is_refused() -> None:
    for size in (1, None):  # Glance does not know the size of all images
        image_checks.check_data(Image(id="i", status="active", size=size))
    with pytest.raises(BadRequest, match=r"^Image i has no data to build a disk from"):
        image_checks.check_data(Image(id="i", status="active", size=0))


def test_properties_are_strings_without_attributes() -> None:
    image = Image(id="i", name="n", size=7, status="active", min_ram=64, properties={"os_distro": "x"})
    assert image_checks.properties(image) == {"min_disk": "0", "min_ram": "64", "os_distro": "x"}


def test_properties_of_a_volume_are_its_image_metadata_without_attributes() -> None:
    metadata = {"image_id": "i", "image_name": "n", "checksum": "c", "size": "7", "min_ram": "64", "os_distro": "x"}
    assert image_checks.volume_properties(metadata) == {"min_ram": "64", "os_distro": "x"}
