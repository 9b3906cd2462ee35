"""Sending network plans to hosts."""

from __future__ import annotations

import asyncio

from kilonova.hosts.messages import Command, NetworkPlan
from kilonova.hosts.messages.verbs import ApplyNetwork
from kilonova.hosts.transport import HostUnreachable
from kilonova.network.host_sync import HostSync
from tests.network.support import (
    create_bound_port,
    net,
    planned_port,
    register_hosts,
)
from tests.support import run


class FakeTransport:
    """Records the plans that are sent to hosts."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, NetworkPlan]] = []
        self.unreachable: set[str] = set()

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> None:
        if host in self.unreachable:
            raise HostUnreachable(host, "unreachable")
        assert isinstance(command.verb, ApplyNetwork)
        self.sent.append((host, command.verb.plan))

    async def wait_for_plans(self, count: int) -> list[tuple[str, NetworkPlan]]:
        async with asyncio.timeout(60):
            while len(self.sent) < count:
                await asyncio.sleep(0.01)
        sent, self.sent = self.sent, []
        return sent


def test_changed_plans_are_sent_to_their_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            hosts = FakeTransport()
            sync = HostSync(cloud.services.db, hosts)
            task = asyncio.create_task(sync.run())
            network, _ = await cloud.network_with_subnet()
            # Wait until the hosts are loaded: otherwise they would get the first plan twice.
            async with asyncio.timeout(60):
                while sync._reload_hosts:
                    await asyncio.sleep(0.01)
            assert hosts.sent == []
            await register_hosts(cloud, "one", "two")
            assert {host for host, _ in await hosts.wait_for_plans(2)} == {"one", "two"}
            a = await create_bound_port(cloud, network, "one")
            ((host, plan),) = await hosts.wait_for_plans(1)
            assert (host, planned_port(plan, a).id) == ("one", a["id"])
            # An unbound port changes no plan. A rule of the port's group changes one.
            await cloud.create("port", network_id=network["id"], security_groups=[])
            rule = {"security_group_id": a["security_groups"][0], "direction": "ingress", "protocol": "tcp"}
            await cloud.create("security_group_rule", **rule)
            ((host, changed),) = await hosts.wait_for_plans(1)
            assert host == "one"
            assert changed.read_at > plan.read_at
            assert len(planned_port(changed, a).rules) == 1 + len(planned_port(plan, a).rules)
            await cloud.ok("DELETE", f"/ports/{a['id']}")
            ((host, plan),) = await hosts.wait_for_plans(1)
            assert plan.networks == []
            task.cancel()

    run(scenario())


def test_plan_is_sent_again_to_unreachable_host(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with net(sqlite_url) as cloud:
            hosts = FakeTransport()
            hosts.unreachable.add("one")
            task = asyncio.create_task(HostSync(cloud.services.db, hosts, resync_seconds=0.2).run())
            await register_hosts(cloud, "one")
            await asyncio.sleep(0.3)
            hosts.unreachable.clear()
            ((host, _),) = (await hosts.wait_for_plans(1))[:1]
            assert host == "one"
            # Accepted plans are sent again periodically.
            await hosts.wait_for_plans(2)
            task.cancel()

    run(scenario())
