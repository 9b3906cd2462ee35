"""A detach that the guest refuses, reported by the host only after the operation's timeout."""

from __future__ import annotations

import pytest

from tests.compute.servers.support import rules
from tests.compute.volume_attachments.support import attach, attachments, detach, guest_volumes
from tests.support import run
from tests.support.full_cloud import full_cloud
from tests.support.volumes import make_volume, show_volume


@pytest.mark.parametrize(
    ("timeout", "delay"), [(0.05, 3.0), (0.5, 0.52)], ids=["long after the timeout", "just after the timeout"]
)
def test_volume_stays_in_use(sqlite_url: str, timeout: float, delay: float) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, operations__host_timeout_seconds=timeout) as c:
            server, volume_id = await c.boot_active(), await make_volume(c)
            await attach(c, server["id"], volume_id)
            with rules(c) as sim:
                sim.set_latency("*", "detach_disk", delay)
                sim.add_failure("*", "detach_disk", "error", None, "the guest does not let it go")
                await detach(c, server["id"], volume_id)
                sim.clear()
            assert (await show_volume(c, volume_id))["status"] == "in-use"
            assert await guest_volumes(c, server["id"]) == [volume_id]
            assert len(await attachments(c, server["id"])) == 1

    run(scenario())
