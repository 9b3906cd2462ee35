"""A guest that does not let a volume go, which its host finds out after longer than one waits for an answer."""

from __future__ import annotations

import pytest

from tests.compute.servers.support import rules
from tests.compute.volume_attachments.support import attach, attachments, detach, in_guest
from tests.support import run
from tests.support.volumes import make_volume, volume
from tests.support.whole import whole


@pytest.mark.parametrize(
    ("patience", "takes"), [(0.05, 3.0), (0.5, 0.52)], ids=["much later", "when one has just stopped listening"]
)
def test_the_volume_is_in_use_again(sqlite_url: str, patience: float, takes: float) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1, operations__host_seconds=patience) as c:
            server, volume_id = await c.active(), await make_volume(c)
            await attach(c, server["id"], volume_id)
            with rules(c) as sim:
                sim.set_latency("*", "detach_disk", takes)
                sim.add_failure("*", "detach_disk", "error", None, "the guest does not let it go")
                await detach(c, server["id"], volume_id)
                sim.clear()
            assert (await volume(c, volume_id))["status"] == "in-use"
            assert await in_guest(c, server["id"]) == [volume_id]
            assert len(await attachments(c, server["id"])) == 1

    run(scenario())
