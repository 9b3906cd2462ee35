"""The agent of one host: runs each command once, answers a repeat with the same, and refuses a stale epoch.

See docs/decisions/0003-agent-protocol.md for why each of these rules is needed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import apsw

from kilonova.hosts import messages
from kilonova.hosts.drivers.base import Driver, DriverError, NoAnswer
from kilonova.hosts.journal import Journal, Key
from kilonova.hosts.messages import (
    Command,
    Describe,
    Destroy,
    ListGuests,
    PowerOff,
    PowerOn,
    Reboot,
    Reply,
    Spawn,
)

log = logging.getLogger(__name__)


class _Run:
    """A change under way. Commands that repeat it join it, and lend it their epoch."""

    def __init__(self, epoch: int, interruptible: bool) -> None:
        self.epoch = epoch
        self.interruptible = interruptible
        self.interrupted = False
        self.task: asyncio.Task[bytes]


class Agent:
    def __init__(self, host: str, driver: Driver, journal: Journal) -> None:
        self.host = host
        self._driver = driver
        self._journal = journal
        self._running: dict[Key, _Run] = {}

    async def handle(self, data: bytes) -> bytes:
        """Answers one command. Raises nothing but NoAnswer, which means that nobody answers."""
        try:
            command = messages.decode_command(data)
            refusal = self._refusal(command)
            if refusal is not None:
                return messages.encode(refusal)
            if command.verb.changes:
                return await self._once(command)
            return messages.encode(await self._perform(command.verb))
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

    async def _once(self, command: Command) -> bytes:
        key = _key(command)
        epoch, reply = self._journal.look(key)
        if epoch is not None and command.epoch < epoch:
            return _stale(command, command.epoch, epoch)
        if epoch is None or command.epoch > epoch:
            self._journal.raise_epoch(key, command.epoch)
        if reply is not None:
            return reply
        run = self._running.get(key)
        if run is None:
            run = self._start(key, command)
        else:
            run.epoch = max(run.epoch, command.epoch)
        return await _outcome(run)

    def _start(self, key: Key, command: Command) -> _Run:
        earlier = [run for other, run in self._running.items() if other.guest == key.guest]
        destroys = isinstance(command.verb, Destroy)
        if destroys:
            for run in earlier:
                _interrupt(run)
        run = _Run(command.epoch, interruptible=not destroys)
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
        reply = await self._perform(command.verb)
        encoded = messages.encode(reply)
        if reply.ok:
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
            case Spawn(guest=guest):
                return await driver.spawn(guest)
            case Destroy(guest_id=guest_id):
                return await driver.destroy(guest_id)
            case PowerOn(guest_id=guest_id):
                return await driver.power_on(guest_id)
            case PowerOff(guest_id=guest_id):
                return await driver.power_off(guest_id)
            case Reboot(guest_id=guest_id, hard=hard):
                return await driver.reboot(guest_id, hard)
            case ListGuests():
                return await driver.guests()
            case Describe():
                return await driver.describe()


def _key(command: Command) -> Key:
    verb = command.verb
    assert not isinstance(verb, ListGuests | Describe)
    tag = str(verb.__struct_config__.tag)
    return Key(command.host, command.operation, command.step, command.round, tag, verb.guest_id)


def _stale(command: Command, epoch: int, seen: int) -> bytes:
    message = f"epoch {epoch} of operation {command.operation} is stale: {seen} was seen"
    return messages.encode(messages.failure("stale epoch", message))


def _interrupt(run: _Run) -> None:
    if run.interruptible:
        run.interrupted = True
        run.task.cancel()


async def _outcome(run: _Run) -> bytes:
    try:
        return await asyncio.shield(run.task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if not run.interrupted or (caller is not None and caller.cancelling()):
            raise
    return messages.encode(messages.failure("interrupted", "the guest is being destroyed"))
