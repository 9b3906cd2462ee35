"""What the network service says of a server's ports."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.network.client import NetworkClient, NetworkError
from tests.support import run
from tests.support.whole import whole


def test_users_do_not_learn_the_host_from_the_network_service(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks to whoever may bind ports, and a real one names the host that it cannot bind one to."""

    async def refuse(*_: Any) -> list[Any]:
        raise NetworkError(409, "HostNotConnected", "Host sim-001 is not connected to any segments")

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            monkeypatch.setattr(NetworkClient, "create_ports", refuse)
            server_id = (await c.boot())["id"]
            told = (await c.settled(server_id))["fault"]
            words = "is not connected to any segments"
            assert told["message"] == f"Failed to allocate the network(s): Host the host {words}"
            assert told["details"] == f"sim-001: Host sim-001 {words}"

    run(scenario())
