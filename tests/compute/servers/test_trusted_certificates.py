"""Trusted image certificates of servers: versions, policies, and volume-backed servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.compute.servers import trusted_certificates
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.policy import Policy
from tests.compute.servers.support import act, create_refusal, make_context, make_server
from tests.support import run
from tests.support.cloud import DEMO, OTHER, cloud, fault
from tests.support.full_cloud import full_cloud
from tests.support.volumes import block_device, boot_from, make_image

TRUSTED_CERTIFICATES = {"trusted_image_certificates": ["a"]}


def test_trusted_image_certificates_on_create_and_rebuild(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active(version="2.63", **TRUSTED_CERTIFICATES)
            assert (await c.show(server["id"], version="2.63"))["trusted_image_certificates"] == ["a"]
            assert "trusted_image_certificates" not in await c.show(server["id"], version="2.62")
            body = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}
            for version, certificates in (("2.62", ["a"]), ("2.63", []), ("2.63", ["a", "a"])):
                server_body = {**body, "trusted_image_certificates": certificates}
                assert (await c.post("/servers", {"server": server_body}, version=version)).status == 400
            names = [f"os_compute_api:servers:{action}:trusted_certs" for action in ("create", "rebuild")]
            rules = tmp_path / "policy.yaml"
            rules.write_text("".join(f'"{name}": "role:admin"\n' for name in names))
            c.services.policy = Policy(rules)
            assert (
                await c.post("/servers", {"server": {**body, **TRUSTED_CERTIFICATES}}, version="2.63")
            ).status == 403
            rebuild_body = {"imageRef": c.image_id, **TRUSTED_CERTIFICATES}
            assert (await act(c, server["id"], "rebuild", rebuild_body, version="2.63")).status == 403

    run(scenario())


def test_certificates_are_refused_for_volume_backed_servers(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            root = {**block_device("image", c.image_id, volume_size=1), "boot_index": 0}
            refusal = await create_refusal(c, imageRef="", block_device_mapping_v2=[root], **TRUSTED_CERTIFICATES)
            assert refusal == (400, trusted_certificates.NOT_OF_VOLUMES)
            server_id = (await boot_from(c, root))["id"]
            image_id = await make_image(c, b"disk")
            answer = await act(c, server_id, "rebuild", {"imageRef": image_id, **TRUSTED_CERTIFICATES}, version="2.96")
            assert fault(answer)[::2] == (400, trusted_certificates.NOT_OF_VOLUMES)

    run(scenario())


@pytest.mark.parametrize("requested", [None, []])
def test_no_certificates_need_no_permission(sqlite_url: str, requested: list[str] | None) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            ctx = make_context(c, "reader")
            trusted_certificates.check(ctx, requested, trusted_certificates.CREATE, volume_backed=True)

    run(scenario())


def test_policy_is_checked_before_the_kind_of_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for project_id, error in ((OTHER, Forbidden), (DEMO, BadRequest)):
                target = {"project_id": project_id, "user_id": "member-id"}
                with pytest.raises(error):
                    trusted_certificates.check(
                        make_context(c), ["a"], trusted_certificates.REBUILD, target, volume_backed=True
                    )

    run(scenario())


@pytest.mark.parametrize(("requested", "shown"), [(None, None), ([], None), (["a"], ["a"]), (["b", "a"], ["b", "a"])])
def test_stored_certificates_are_shown_in_their_order(requested: list[str] | None, shown: Any) -> None:
    stored = make_server().with_columns({"trusted_certificates": trusted_certificates.column(requested)})
    assert stored.trusted_certificates == shown
