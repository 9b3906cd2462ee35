"""Changes of a server's pinned zone. tests/specs/test_pinned_zone.py tests the requests."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.servers import pinned_zone
from kilonova.compute.zones.model import create_zone
from kilonova.http.errors import Conflict
from tests.compute.servers.support import make_context, make_server
from tests.support import run
from tests.support.cloud import cloud


@pytest.mark.parametrize(
    ("server", "wanted", "message"),
    [
        # The pin can always be removed and repeated, wherever the server is.
        ({"host": "host1", "pinned_zone": None}, None, None),
        ({"host": "host1", "pinned_zone": "AZ2"}, None, None),
        ({"host": None, "pinned_zone": "AZ2"}, None, None),
        ({"host": "host1", "pinned_zone": "AZ2"}, "AZ2", None),
        ({"host": None, "pinned_zone": "AZ2"}, "AZ2", None),
        # An unpinned server can be pinned to the zone of its host.
        ({"host": "host1", "pinned_zone": None}, "AZ1", None),
        ({"host": "host2", "pinned_zone": None}, "default", None),
        ({"host": "host1", "pinned_zone": None}, "AZ2", "cannot be pinned to AZ2: it is in the availability zone AZ1."),
        (
            {"host": "host2", "pinned_zone": None},
            "AZ1",
            "cannot be pinned to AZ1: it is in the availability zone default.",
        ),
        ({"host": None, "pinned_zone": None}, "AZ1", "cannot be pinned to AZ1: it is in no availability zone."),
        # Another pin must be removed first, even for the zone of the host.
        ({"host": "host1", "pinned_zone": "AZ2"}, "AZ1", "is pinned to the availability zone AZ2. Unpin it first."),
    ],
)
def test_pin_changes(database_url: str, server: dict[str, Any], wanted: str | None, message: str | None) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2, scheduler__default_zone="default") as c, c.db.transaction() as tx:
            await create_zone(tx, "AZ1", ["host1"])
            changed = pinned_zone.check(make_context(c), tx, make_server(**server), wanted)
            if message is None:
                await changed
                return
            with pytest.raises(Conflict) as refusal:
                await changed
            assert refusal.value.message == f"Instance s {message}"

    run(scenario())
