"""Random sequences of API calls on one server of an in-process cloud, compared with the model after each call."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kilonova import clock
from kilonova.compute import power_state_sync
from kilonova.compute.operations.deferred_cleanup import (
    CleanUpGuest,
    CleanUpSlot,
    ParkGuest,
    RestoreDisk,
    RestoreGuest,
    RestoreInterface,
)
from kilonova.compute.operations.update_metadata import DeferredUpdateMetadata
from kilonova.compute.servers import states
from kilonova.doctor import examine
from kilonova.doctor.volumes import read_built_in
from kilonova.hosts.messages import Report
from kilonova.http.client import ClientResponse
from kilonova.operations import Worker
from kilonova.services import Services
from tests.compute.servers.moves import force_down
from tests.compute.servers.support import make_flavor, rules
from tests.support.cloud import fault
from tests.support.databases import opened, sqlite_template
from tests.support.full_cloud import (
    TIMEOUT_SECONDS,
    WITHOUT_LIVENESS_CACHE,
    FullCloud,
    build_full_cloud,
    load_settings,
)
from tests.support.server_model import (
    CALLS,
    LARGE_FLAVOR,
    SMALL_FLAVOR,
    Facts,
    Table,
    may_fail,
    proves_guest,
    refusal,
    state_after,
    states_after_failure,
)
from tests.support.volumes import NEWEST_VERSION, VOLUME, block_device, make_image

T = TypeVar("T")

HOSTS = 2
HOST_DOWN, HOST_UP, REPORT = "host goes down", "host comes up", "hosts report"
FAILS = " fails"
KINDS = {400: "badRequest", 403: "forbidden", 404: "itemNotFound", 409: "conflictingRequest"}
# Calls and events that are chosen more or less often than others.
WEIGHTS = {"os-resetState error": 1, "delete": 1, "forceDelete": 1, "lock": 1, "unlock": 6, HOST_DOWN: 1, HOST_UP: 4}
USUAL_WEIGHT = 3
# Operations that wait for a host.
DEFERRED_KINDS = frozenset(
    kind.kind
    for kind in (
        *(CleanUpGuest, CleanUpSlot, RestoreGuest, ParkGuest, RestoreDisk, RestoreInterface),
        DeferredUpdateMetadata,
    )
)
# Deferred operations that wait for a host change their rows, so only their ids count.
CONTENT = {
    "operations": "SELECT id FROM operations ORDER BY 1",
    **{
        table: f"SELECT * FROM {table} ORDER BY 1"
        for table in ("servers", "allocations", "consumers", "ports", "block_devices", "volumes", "volume_attachments")
    },
}


def variants(name: str) -> st.SearchStrategy[str]:
    """The call, or now and then the call with a failing command of the host."""
    commands = CALLS[name].commands if name in CALLS else ()
    return st.sampled_from([*[name] * 4, *(f"{name}, {command}{FAILS}" for command in commands)])


class _Finished:
    """Tells when operations end. An observer of the worker."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None:
        pass

    def operation_finished(self, kind: str, state: str) -> None:
        self.event.set()


class ServerCloud:
    """A cloud with a worker, two hosts, two data volumes and an image for rescues."""

    cloud: FullCloud
    rescue_image: str
    data_volumes: tuple[str, str]

    def __init__(self) -> None:
        self.down: str | None = None
        self._finished = _Finished()

    async def open(self, stack: AsyncExitStack, **flags: Any) -> None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services = Services()
        services.config = load_settings(**WITHOUT_LIVENESS_CACHE, **flags)
        services.config.data = str(directory)
        file = directory / "kilonova.db"
        shutil.copy(sqlite_template(), file)
        services.db = await stack.enter_async_context(opened(f"sqlite://{file}"))
        self.cloud = await build_full_cloud(services, directory, stack, HOSTS)
        worker = Worker(
            services.db, services, observer=self._finished, backoff=lambda attempt: min(0.02 * attempt, 0.2)
        )
        task = asyncio.create_task(worker.run())
        stack.push_async_callback(asyncio.wait_for, task, TIMEOUT_SECONDS)
        stack.push_async_callback(worker.stop)
        for flavor, ram in ((SMALL_FLAVOR, 512), (LARGE_FLAVOR, 1024)):
            await make_flavor(self.cloud, flavor, ram=ram)
        self.rescue_image = await make_image(self.cloud, b"rescue", hw_rescue_bus="virtio", hw_rescue_device="disk")
        self.data_volumes = (await self._make_volume(), await self._make_volume())
        await self.wait_until_idle()

    async def _make_volume(self) -> str:
        answer = await self.cloud.post("/volumes", {"volume": {"size": 1}}, root=VOLUME, headers=NEWEST_VERSION)
        volume_id: str = answer.json()["volume"]["id"]
        return volume_id

    async def wait_until_idle(self) -> None:
        """Wait until all operations have finished. While a host is down, deferred cleanup may wait for it."""
        sql = "SELECT kind, params FROM operations WHERE finished_at IS NULL"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                self._finished.event.clear()
                if all(self._waits_for_host(**row) for row in await self.cloud.db.fetch(sql)):
                    return
                await self._finished.event.wait()

    def _waits_for_host(self, kind: str, params: str) -> bool:
        return kind in DEFERRED_KINDS and orjson.loads(params).get("host", self.down) == self.down is not None

    async def disconnect(self, host: str) -> None:
        """Make the host unreachable, and force it down."""
        with rules(self.cloud) as sim:
            sim.add_failure(host, "*", "unreachable", None, None)
        await force_down(self.cloud, host)
        self.down = host

    async def connect(self) -> None:
        """Make the host reachable. It is up when deferred cleanup is done."""
        if self.down is None:
            return
        host, self.down = self.down, None
        with rules(self.cloud) as sim:
            sim.clear(host)
        async with self.cloud.db.transaction() as tx:
            await tx.execute("UPDATE operations SET run_at = 0 WHERE finished_at IS NULL AND lease_until <= 0")
            tx.notify("operations")
        await self.wait_until_idle()
        await force_down(self.cloud, host, down=False)
        await self.cloud.heartbeat.beat()
        await self.wait_until_idle()

    async def report(self) -> None:
        """Have all hosts report their guests."""
        guests = await self.cloud.list_guests_and_slots()
        for host in self.cloud.hosts.names:
            found = [guest for name, guest in guests if name == host]
            await power_state_sync.sync(self.cloud.services, Report(host=host, guests=found))

    async def findings(self) -> list[str]:
        """What the doctor finds. It would skip servers whose operations have just ended."""
        found = await examine(
            self.cloud.db,
            await self.cloud.list_guests_and_slots(),
            partial(read_built_in, self.cloud.db),
            since=clock.now() + 2.0,
        )
        return [f"{finding.kind}: {finding.detail}" for finding in found]

    async def dump(self, server_id: str) -> dict[str, Any]:
        """All that a refused call must leave unchanged."""
        shown = await self.cloud.get(f"/servers/{server_id}", as_="admin", version="2.96")
        return {"shown": shown.json(), **{name: await self.cloud.db.fetch(sql) for name, sql in CONTENT.items()}}


class ServerMachine(RuleBasedStateMachine):
    """Calls the API on one server after the other. Subclasses choose the kind of server and the configuration.

    `choices` are the same in all states, so that a call that is left out does not change the calls after it.
    """

    choices: ClassVar[Sequence[str]] = [
        name for name in (*CALLS, REPORT, HOST_DOWN, HOST_UP) for _ in range(WEIGHTS.get(name, USUAL_WEIGHT))
    ]
    table: ClassVar[Table] = states.TRANSITIONS
    volume_backed: ClassVar[bool] = False
    reclaims: ClassVar[bool] = False
    offloads: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._world = ServerCloud()
        self._run(
            self._world.open(
                self._stack,
                compute__reclaim_seconds=3600.0 if self.reclaims else 0.0,
                compute__shelved_offload_seconds=0.0 if self.offloads else -1.0,
            )
        )
        self.facts: Facts | None = None
        self._is_in_doubt = False

    def teardown(self) -> None:
        try:
            if sys.exception() is None:
                self._run(self._check_end())
        finally:
            self._run(self._stack.aclose())
            self._runner.close()

    # Rules

    @property
    def is_without_server(self) -> bool:
        return self.facts is None or self.facts.vm_state == states.DELETED

    @precondition(lambda self: self.is_without_server)
    @rule(hosts_fail=st.sampled_from((*(False,) * 19, True)))
    def boot(self, hosts_fail: bool) -> None:
        self._run(self._boot(hosts_fail))
        self._run(self._check_server())

    @precondition(lambda self: self.facts is not None)
    @rule(call=st.runner().flatmap(lambda machine: st.sampled_from(machine.choices)).flatmap(variants))
    def act(self, call: str) -> None:
        """`call` is the name of a call, which may say which command of the host fails."""
        name, _, failing = call.removesuffix(FAILS).partition(", ")
        events = {HOST_DOWN: self._host_down, HOST_UP: self._host_up, REPORT: self._report}
        self._run(events[name]() if name in events else self._call(name, failing))
        self._run(self._check_server())

    # Calls

    async def _boot(self, hosts_fail: bool) -> None:
        world, c = self._world, self._world.cloud
        await world.connect()
        keys: dict[str, Any] = {"flavorRef": SMALL_FLAVOR}
        if self.volume_backed:
            device = block_device("image", c.image_id, boot_index=0, volume_size=1, delete_on_termination=True)
            keys |= {"imageRef": "", "block_device_mapping_v2": [device]}
        with rules(c) as sim:
            if hosts_fail:
                sim.add_failure("*", "spawn", "error", None, None)
            server = await c.boot(**keys)
            await world.wait_until_idle()
            sim.clear("*")
        self._is_in_doubt = False
        self.facts = await self._read(server["id"])
        expected = (states.ERROR, states.NOSTATE) if hosts_fail else (states.ACTIVE, states.RUNNING)
        assert (self.facts.vm_state, self.facts.power_state) == expected, self.facts

    async def _call(self, name: str, failing: str = "") -> None:
        facts = self.facts
        assert facts is not None
        expected = refusal(name, facts, self.table)
        if expected is not None:
            await self._check_refused(name, facts, *expected)
        else:
            await self._check_accepted(name, facts, failing)
        self.facts = await self._read(facts.id)

    async def _send(self, name: str, facts: Facts) -> ClientResponse:
        call = CALLS[name]
        return await self._world.cloud.request(
            call.method,
            f"/servers/{facts.id}{call.path(facts)}",
            json=call.body(facts),
            as_=call.as_,
            version=call.version,
        )

    async def _check_refused(self, name: str, facts: Facts, status: int, words: str) -> None:
        before = await self._world.dump(facts.id)
        answer = await self._send(name, facts)
        assert answer.status == status, f"{name} in {facts.vm_state}: {answer.status} {answer.body!r}, not {status}"
        code, kind, message = fault(answer)
        assert (code, kind) == (status, KINDS[status]), answer.body
        assert words in message, f"{name} in {facts.vm_state}: {message!r} lacks {words!r}"
        changes = _changes(before, await self._world.dump(facts.id))
        assert not changes, f"{name} was refused in {facts.vm_state} and changed {changes}"

    async def _check_accepted(self, name: str, facts: Facts, failing: str) -> None:
        world, c = self._world, self._world.cloud
        seq = await c.db.fetch_value("SELECT MAX(seq) FROM operations")
        with rules(c) as sim:
            rule_id = sim.add_failure("*", failing, "error", 1, None) if failing else None
            answer = await self._send(name, facts)
            await world.wait_until_idle()
            has_failed = any(rule.id == rule_id and rule.fired for rule in sim.all())
            if failing:
                sim.clear("*", failing)
        begun = await c.db.fetch(_BEGUN, facts.id, seq)
        failed = [row for row in begun if row["state"] != "done"]
        # Attaching an interface answers when its operation has ended.
        is_refused = answer.status >= 300 and not (failed and name == "attach_interface")
        assert not is_refused, f"{name} in {facts.vm_state}: {answer.status} {answer.body!r}"
        assert not failed or has_failed or may_fail(name, facts), f"{name} in {facts.vm_state}: {failed}"
        if begun and not failed and proves_guest(name, facts):
            self._is_in_doubt = False
        after = await self._read(facts.id)
        found, expected = (after.vm_state, after.power_state), self._states_after(name, facts, begun)
        assert found in expected, f"{name} in {facts.vm_state} leads to {found}, not to {expected}: {begun}"

    def _states_after(self, name: str, facts: Facts, begun: list[dict[str, Any]]) -> set[tuple[str, int]]:
        """Allowed states and power states after these operations."""
        if begun and begun[0]["state"] != "done":
            return states_after_failure(name, facts)
        state = state_after(name, facts, self.table)
        if any(row["kind"] == "shelve_offload" and row["state"] == "done" for row in begun):
            (offloaded,) = self.table["shelveOffload"].follows[states.SHELVED]
            return {(offloaded, states.NOSTATE)}
        return {state}

    async def _host_down(self) -> None:
        assert self.facts is not None
        if self._world.down is None and self.facts.host is not None:
            await self._world.disconnect(self.facts.host)
        self.facts = await self._read(self.facts.id)

    async def _host_up(self) -> None:
        assert self.facts is not None
        await self._world.connect()
        self.facts = await self._read(self.facts.id)

    async def _report(self) -> None:
        """Reports change nothing, unless the guest need not have the power that the state says."""
        facts = self.facts
        assert facts is not None
        if self._world.down is not None:
            return
        before = await self._world.dump(facts.id)
        await self._world.report()
        if not facts.has_odd_guest:
            changes = _changes(before, await self._world.dump(facts.id))
            assert not changes, f"a report in {facts.vm_state} changed {changes}"
        self.facts = await self._read(facts.id)

    # Checks

    async def _check_server(self) -> None:
        facts, c = self.facts, self._world.cloud
        assert facts is not None
        deleted = facts.vm_state == states.DELETED
        answer = await c.get(f"/servers/{facts.id}", as_="admin", version="2.96")
        if deleted:
            assert answer.status == 404, answer.body
        else:
            shown = answer.json()["server"]
            assert shown["status"] == states.status(facts.vm_state, None), shown
            assert shown["OS-EXT-STS:vm_state"] == facts.vm_state, shown
            assert shown["OS-EXT-STS:task_state"] is None, shown
            assert shown["OS-EXT-STS:power_state"] == facts.power_state, shown
            assert shown["OS-EXT-SRV-ATTR:host"] == facts.host, shown
            assert shown["locked"] == facts.locked, shown
        may_be_offloaded = facts.vm_state == states.ERROR and facts.is_shelved
        hostless = facts.host is None if may_be_offloaded else not facts.launched
        hostless |= facts.vm_state == states.SHELVED_OFFLOADED
        assert deleted or (facts.host is None) == hostless, facts
        holders = Counter(row["type"] for row in await c.db.fetch(_HOLDERS))
        expected = Counter({"INSTANCE": not hostless and not deleted, "MIGRATION": facts.old_vm_state is not None})
        assert holders == expected, f"{facts.vm_state}: allocations of {holders}"
        if not deleted:
            assert (facts.old_vm_state is not None) == (facts.vm_state == states.RESIZED), facts
        if facts.vm_state not in (states.ERROR, states.DELETED):
            assert facts.is_shelved == (facts.vm_state in (states.SHELVED, states.SHELVED_OFFLOADED)), facts

    async def _check_end(self) -> None:
        """The doctor finds nothing, and nothing is left of a deleted server."""
        world, c = self._world, self._world.cloud
        await world.connect()
        if self.facts is None:
            return
        await world.report()
        findings = await world.findings()
        if (await self._read(self.facts.id)).has_odd_guest:
            findings = [finding for finding in findings if not finding.startswith(WITHOUT_GUEST)]
        assert not findings, findings
        if not self.is_without_server:
            for action in ("unlock", "forceDelete"):
                answer = await c.post(f"/servers/{self.facts.id}/action", {action: None}, as_="project-admin")
                assert answer.status == 202, answer.body
            await world.wait_until_idle()
        findings = await world.findings()
        assert not findings, findings
        left = {name: await c.db.fetch_value(f"SELECT COUNT(*) FROM {name}") for name in LEFT_TABLES}
        assert left == dict.fromkeys(LEFT_TABLES, 0), left
        assert await c.list_guests_and_slots() == []

    async def _read(self, server_id: str) -> Facts:
        world, c = self._world, self._world.cloud
        row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
        assert row is not None
        self._is_in_doubt |= row["vm_state"] == states.ERROR
        volumes = [entry["volume_id"] for entry in await c.db.fetch(_VOLUMES, server_id)]
        ports = await c.db.fetch("SELECT id FROM ports WHERE device_id = $1 ORDER BY id", server_id)
        move = await c.db.fetch_one(_UNCONFIRMED, server_id)
        available = await c.db.fetch("SELECT id FROM volumes WHERE status = 'available'")
        return Facts(
            id=server_id,
            vm_state=row["vm_state"],
            power_state=row["power_state"],
            host=row["host"],
            locked=bool(row["locked"]),
            launched=row["launched_at"] is not None,
            is_in_doubt=self._is_in_doubt,
            is_shelved=row["shelved_at"] is not None,
            may_lack_guest=bool(await c.db.fetch(_DESTROYERS, server_id, row["shelved_at"])),
            flavor_id=row["flavor_id"],
            metadata=row["metadata"],
            ports=tuple(port["id"] for port in ports),
            volumes=tuple(volume for volume in volumes if volume in world.data_volumes),
            root_volume=next((volume for volume in volumes if volume not in world.data_volumes), None),
            old_vm_state=move["old_vm_state"] if move else None,
            old_power_state=move["old_power_state"] if move else None,
            down=world.down,
            reclaims=self.reclaims,
            image=c.image_id,
            rescue_image=world.rescue_image,
            network=c.network_id,
            data_volumes=world.data_volumes,
            available_volumes=frozenset(volume["id"] for volume in available),
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


# Findings about a server that an operator or a soft delete took out of ERROR without its guest.
WITHOUT_GUEST = ("guest ", "attachment on the wrong host")
LEFT_TABLES = (
    *("allocations", "consumers", "block_devices", "volume_attachments", "standby_bindings"),
    "ports WHERE device_owner LIKE 'compute:%'",
)
_BEGUN = """
SELECT kind, state, step, error FROM operations WHERE server_id = $1 AND seq > $2 AND kind <> 'notice' ORDER BY seq
"""
_HOLDERS = """
SELECT c.type FROM consumers c WHERE EXISTS (SELECT 1 FROM allocations a WHERE a.consumer_uuid = c.uuid)
"""
_DESTROYERS = """
SELECT id FROM operations WHERE server_id = $1 AND kind IN ('shelve_offload', 'delete') AND created_at >= $2
"""
_VOLUMES = "SELECT volume_id FROM block_devices WHERE server_id = $1 AND volume_id IS NOT NULL ORDER BY id"
_UNCONFIRMED = """
SELECT m.old_vm_state, m.old_power_state FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.server_id = $1 AND m.type IN ('migration', 'resize') AND m.outcome IS NULL AND o.state = 'done'
"""
