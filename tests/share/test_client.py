"""Compute's client of the share service, with the built-in service."""

from __future__ import annotations

import pytest

from kilonova.http.client import Unreachable
from kilonova.identity.client import Auth
from kilonova.ids import new_id
from kilonova.share.client import ShareClient, ShareError
from tests.share.support import share_cloud
from tests.support import run
from tests.support.cloud import ADMIN, DEMO
from tests.volume.test_client import Scripted

SERVICE, MEMBER, OTHER = Auth("kilonova", ADMIN, is_service=True), Auth("member", DEMO), Auth("other", DEMO)


def test_share_is_locked_and_opened_for_a_host(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            client, share_id = c.services.share, await c.create(name="s")
            shown = await client.show(share_id, MEMBER)
            assert shown is not None
            assert (shown.name, shown.status, shown.share_proto) == ("s", "available", "NFS")
            assert await client.show(share_id, OTHER) is None
            assert await client.show("detail", MEMBER) is None
            assert str(await client.export_location(share_id, MEMBER)).endswith(f"/{share_id}")
            rule = await client.allow_access(share_id, "ip", "10.0.0.7", "in use", SERVICE)
            found = await client.access_rule(share_id, "ip", "10.0.0.7", SERVICE)
            assert found is not None
            assert (found.id, found.state) == (rule.id, "active")
            assert await client.access_rule(share_id, "ip", "10.0.0.8", SERVICE) is None
            lock = await client.lock(share_id, "server", SERVICE)
            assert [each.lock_reason for each in await client.locks(share_id, SERVICE)] == ["server"]
            for _ in range(2):
                await client.deny_access(share_id, rule.id, SERVICE)
                await client.unlock(lock.id, SERVICE)
            assert await client.locks(share_id, SERVICE) == []
            with pytest.raises(ShareError) as refused:
                await client.lock(new_id(), "server", SERVICE)
            assert refused.value.status == 404

    run(scenario())


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, b"<html>", Unreachable),
        (429, {"overLimit": {"message": "slow down"}}, Unreachable),
        (200, {"other": 1}, Unreachable),
        (200, b"no json", Unreachable),
        (403, {"forbidden": {"message": "no"}}, ShareError),
    ],
)
def test_errors_of_the_service(status: int, body: object, error: type[Exception]) -> None:
    client = ShareClient(Scripted(status, body))  # type: ignore[arg-type]
    with pytest.raises(error):
        run(client.locks(new_id(), MEMBER))
