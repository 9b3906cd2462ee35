"""The agent of one host: runs each command once, answers a repeat with the same, and refuses a stale epoch.

See docs/decisions/0003-agent-protocol.md for why each of these rules is needed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, assert_never

import apsw

from kilonova.hosts import messages
from kilonova.hosts.drivers.base import Driver, DriverError, NoAnswer
from kilonova.hosts.journal import Journal, Key
from kilonova.hosts.messages import Command, Reply, verbs

log = logging.getLogger(__name__)


# What these do depends on whether a migration is under way just now, so that a repeat is done again.
_FORGOTTEN = verbs.StopMigration | verbs.HurryMigration


class _Run:
    """A change under way. Commands that repeat it join it, and lend it their epoch."""

    def __init__(self, epoch: int, verb: messages.Change) -> None:
        self.epoch = epoch
        self.verb = verb
        self.interrupted = ""
        self.task: asyncio.Task[bytes]


class Agent:
    def __init__(self, host: str, driver: Driver, journal: Journal) -> None:
        self.host = host
        self._driver = driver
        self._journal = journal
        self._running: dict[Key, _Run] = {}

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return bool(self._running)

    async def handle(self, data: bytes) -> bytes:
        """Answers one command. Raises nothing but NoAnswer, which means that nobody answers."""
        try:
            command = messages.decode_command(data)
            refusal = self._refusal(command)
            if refusal is not None:
                return messages.encode(refusal)
            if isinstance(command.verb, messages.Read):
                return messages.encode(await self._perform(command.verb))
            return await self._once(command, command.verb)
        except messages.Unreadable as unreadable:
            return messages.encode(Reply(ok=False, error=unreadable.error))
        except apsw.Error as trouble:
            log.error("host %s cannot use its journal: %s", self.host, trouble)
            message = f"the journal of host {self.host} failed: {trouble}"
            return messages.encode(messages.failure("internal", message, passing=True))

    def _refusal(self, command: Command) -> Reply | None:
        if command.host != self.host:
            return messages.failure("wrong host", f"a command for {command.host} reached {self.host}")
        if command.verb.changes and not (command.operation and command.step):
            return messages.failure("malformed", "a change must name its operation and step")
        return None

    async def _once(self, command: Command, verb: messages.Change) -> bytes:
        key = _key(command, verb)
        epoch, reply = self._journal.look(key)
        if epoch is not None and command.epoch < epoch:
            return _stale(command, command.epoch, epoch)
        if epoch is None or command.epoch > epoch:
            self._journal.raise_epoch(key, command.epoch)
        if reply is not None:
            return reply
        run = self._running.get(key)
        if run is None:
            run = self._start(key, command, verb)
        else:
            run.epoch = max(run.epoch, command.epoch)
        return await _outcome(run)

    def _start(self, key: Key, command: Command, verb: messages.Change) -> _Run:
        earlier = [run for other, run in self._running.items() if other.guest == key.guest]
        for run in earlier:
            reason = _interruption(verb, run.verb)
            if reason:
                run.interrupted = reason
                run.task.cancel()
        if isinstance(verb, verbs.HurryMigration):
            earlier = []
        run = _Run(command.epoch, verb)
        # A task of its own: a caller that gives up waiting must not stop work that is half done.
        run.task = asyncio.create_task(self._run(run, key, command, [other.task for other in earlier]))
        self._running[key] = run
        run.task.add_done_callback(lambda task: self._ended(key, task))
        return run

    def _ended(self, key: Key, task: asyncio.Task[bytes]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # nobody may be waiting any more; then nobody needs to hear of it

    async def _run(self, run: _Run, key: Key, command: Command, earlier: list[asyncio.Task[bytes]]) -> bytes:
        if earlier:
            await asyncio.wait(earlier)
            epoch, _ = self._journal.look(key)
            if epoch is not None and run.epoch < epoch:
                return _stale(command, run.epoch, epoch)
        reply = await self._perform(run.verb)
        encoded = messages.encode(reply)
        if reply.ok and not isinstance(run.verb, _FORGOTTEN):
            self._journal.finish(key, encoded)
        return encoded

    async def _perform(self, verb: messages.Change | messages.Read) -> Reply:
        try:
            return messages.success(await self._ask_driver(verb))
        except NoAnswer:
            raise
        except DriverError as error:
            return messages.failure(error.kind, error.message, passing=error.passing)
        except Exception as error:
            log.exception("host %s: %s failed unexpectedly", self.host, type(verb).__name__)
            return messages.failure("internal", f"{type(error).__name__} in the agent of {self.host}; see its log")

    async def _ask_driver(self, verb: messages.Change | messages.Read) -> Any:
        driver = self._driver
        match verb:
            case verbs.Spawn(guest=guest, start=start, data=data, disk_of=disk_of):
                return await driver.spawn(guest, start=start, data=data, disk_of=disk_of)
            case verbs.Destroy(guest_id=guest_id):
                return await driver.destroy(guest_id)
            case verbs.PowerOn(guest_id=guest_id):
                return await driver.power_on(guest_id)
            case verbs.PowerOff(guest_id=guest_id, grace=grace):
                return await driver.power_off(guest_id, grace)
            case verbs.Reboot(guest_id=guest_id, hard=hard):
                return await driver.reboot(guest_id, hard)
            case verbs.Pause(guest_id=guest_id):
                return await driver.pause(guest_id)
            case verbs.Unpause(guest_id=guest_id):
                return await driver.unpause(guest_id)
            case verbs.Suspend(guest_id=guest_id):
                return await driver.suspend(guest_id)
            case verbs.Resume(guest_id=guest_id):
                return await driver.resume(guest_id)
            case verbs.Rescue(guest_id=guest_id, image=image, data=data, password=password):
                return await driver.rescue(guest_id, image, data, password)
            case verbs.Unrescue(guest_id=guest_id):
                return await driver.unrescue(guest_id)
            case verbs.SetPassword(guest_id=guest_id, user=user, password=password):
                return await driver.set_password(guest_id, user, password)
            case verbs.CrashDump(guest_id=guest_id):
                return await driver.crash_dump(guest_id)
            case verbs.AttachNic(guest_id=guest_id, nic=nic):
                return await driver.attach_nic(guest_id, nic)
            case verbs.DetachNic(guest_id=guest_id, port_id=port_id):
                return await driver.detach_nic(guest_id, port_id)
            case verbs.SetMetadata(guest_id=guest_id, name=name, metadata=metadata, forgetting=forgetting):
                return await driver.set_metadata(guest_id, name, metadata, forgetting)
            case verbs.Park(guest_id=guest_id, slot=slot):
                return await driver.park(guest_id, slot)
            case verbs.Unpark(guest_id=guest_id, slot=slot, start=start, disks=disks):
                return await driver.unpark(guest_id, slot, start, disks)
            case verbs.Discard(guest_id=guest_id, slot=slot):
                return await driver.discard(guest_id, slot)
            case verbs.Receive(guest=guest, source=source, slot=slot, start=start, reach=reach):
                return await driver.receive(guest, source, slot, start, reach)
            case verbs.Offer(guest_id=guest_id, destination=destination, slot=slot, reach=reach):
                return await driver.offer(guest_id, destination, slot, reach)
            case verbs.Expect(guest=guest, source=source, slot=slot, block=block, offer=offer, reach=reach):
                return await driver.expect(guest, source, slot, block, offer, reach)
            case verbs.MigrateLive(guest_id=guest_id, destination=destination, slot=slot, block=block, reach=reach):
                return await driver.migrate_live(guest_id, destination, slot, block, reach)
            case verbs.StopMigration(guest_id=guest_id):
                return await driver.stop_migration(guest_id)
            case verbs.HurryMigration(guest_id=guest_id):
                return await driver.hurry_migration(guest_id)
            case verbs.Snapshot(guest_id=guest_id, data=transfer):
                return await driver.snapshot(guest_id, transfer)
            case verbs.AttachDisk(guest_id=guest_id, disk=disk):
                return await driver.attach_disk(guest_id, disk)
            case verbs.DetachDisk(guest_id=guest_id, volume_id=volume_id):
                return await driver.detach_disk(guest_id, volume_id)
            case verbs.SwapDisk(guest_id=guest_id, volume_id=volume_id, disk=disk):
                return await driver.swap_disk(guest_id, volume_id, disk)
            case verbs.GrowDisk(guest_id=guest_id, volume_id=volume_id, size_gb=size_gb):
                return await driver.grow_disk(guest_id, volume_id, size_gb)
            case verbs.LookConsole(guest_id=guest_id, lines=lines):
                return await driver.look_console(guest_id, lines)
            case verbs.LookDisplay(guest_id=guest_id, kind=kind):
                return await driver.look_display(guest_id, kind)
            case verbs.LookDiagnostics(guest_id=guest_id):
                return await driver.look_diagnostics(guest_id)
            case verbs.ApplyNetwork(plan=plan):
                return await driver.apply_network(plan)
            case verbs.LookConnector():
                return await driver.look_connector()
            case verbs.LookMigration(guest_id=guest_id):
                return await driver.look_migration(guest_id)
            case verbs.ListGuests():
                return await driver.guests()
            case verbs.Describe():
                return await driver.describe()
            case _:
                assert_never(verb)


def _key(command: Command, verb: messages.Change) -> Key:
    tag = str(verb.__struct_config__.tag)
    return Key(command.host, command.operation, command.step, command.round, tag, verb.guest_id)


def _interruption(newcomer: messages.Change, running: messages.Change) -> str:
    """Why what runs has to end for the newcomer; nothing if the newcomer waits."""
    match newcomer, running:
        case verbs.Destroy(), verbs.Destroy():
            return ""
        case verbs.Destroy(), _:
            return "the guest is being destroyed"
        case verbs.StopMigration(), verbs.MigrateLive() | verbs.HurryMigration():
            return "the migration was stopped"
    return ""


def _stale(command: Command, epoch: int, seen: int) -> bytes:
    message = f"epoch {epoch} of operation {command.operation} is stale: {seen} was seen"
    return messages.encode(messages.failure("stale epoch", message))


async def _outcome(run: _Run) -> bytes:
    try:
        return await asyncio.shield(run.task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if not run.interrupted or (caller is not None and caller.cancelling()):
            raise
    return messages.encode(messages.failure("interrupted", run.interrupted))
