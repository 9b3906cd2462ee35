"""The agent of one host: executes each command once, repeats its reply to a repeat, and refuses a stale epoch.

docs/decisions/0003-agent-protocol.md gives the reasons for these rules.
"""

from __future__ import annotations

import asyncio
import errno
import logging

import apsw
from msgspec import structs

from kilonova.hosts import messages
from kilonova.hosts.display_sessions import DisplaySessions
from kilonova.hosts.drivers.base import Driver, DriverError, NoAnswer
from kilonova.hosts.journal import Journal, Key
from kilonova.hosts.messages import Command, Reply, Transfer, verbs
from kilonova.store.incarnation import Mark

log = logging.getLogger(__name__)

_Command = Command[verbs.Change | verbs.Read]

# Their effect depends on whether a migration is under way, so a repeat is executed again.
_NOT_JOURNALLED = verbs.StopMigration | verbs.ForceCompleteMigration
_OF_DISPLAY_SESSIONS = verbs.OpenDisplay | verbs.ReadDisplay | verbs.WriteDisplay | verbs.CloseDisplay


class _Run:
    """A change under way. A repeated command joins it and raises its epoch."""

    def __init__(self, epoch: int, incarnation: int, verb: verbs.Change) -> None:
        self.epoch = epoch
        self.incarnation = incarnation
        self.verb = verb
        self.interrupted = ""
        self.task: asyncio.Task[bytes]

    def renew_ticket(self, repeated: verbs.Change) -> None:
        """Continue with the ticket of the repeated command: the work may need one after the first has expired."""
        match self.verb, repeated:
            case (
                (verbs.Spawn(data=Transfer() as data), verbs.Spawn(data=Transfer() as new))
                | (verbs.Rescue(data=Transfer() as data), verbs.Rescue(data=Transfer() as new))
                | (verbs.Snapshot(data=data), verbs.Snapshot(data=new))
            ):
                data.ticket = new.ticket


class Agent:
    def __init__(self, host: str, driver: Driver, journal: Journal) -> None:
        self.host = host
        self._driver = driver
        self._journal = journal
        self._displays = DisplaySessions(driver)
        # By incarnation and key: a command of a restored database does not join work of the replaced one.
        self._running: dict[tuple[int, Key], _Run] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def close(self) -> None:
        """End what lasts longer than a command."""
        self._displays.close()

    async def handle(self, data: bytes) -> bytes:
        """Execute one command and return the reply. Raises only NoAnswer."""
        try:
            command = messages.decode_command(data)
            refusal = self._refusal(command)
            if refusal is not None:
                return messages.encode(refusal)
            if isinstance(command.verb, verbs.Read):
                return messages.encode(await self._read(command.verb))
            return await self._execute_once(command, command.verb)
        except messages.UnreadableCommand as unreadable:
            return messages.encode(Reply(ok=False, error=unreadable.error))
        except apsw.Error as error:
            log.error("the journal of host %s failed: %s", self.host, error)
            message = f"the journal of host {self.host} failed: {error}"
            return messages.encode(messages.failure("internal", message, passing=True))

    def _refusal(self, command: _Command) -> Reply | None:
        if command.host != self.host:
            return messages.failure("wrong host", f"a command for {command.host} reached {self.host}")
        if command.verb.changes and not (command.operation and command.step):
            return messages.failure("malformed", "a change must name its operation and step")
        return None

    async def _execute_once(self, command: _Command, verb: verbs.Change) -> bytes:
        key, mark = _key(command, verb), Mark(command.incarnation, command.leases)
        seen = self._journal.mark(self.host)
        if mark.incarnation < seen.incarnation:
            return _replaced(mark.incarnation, seen.incarnation)
        if mark.incarnation > seen.incarnation:
            self._journal.begin_incarnation(self.host, mark)
        await self._journal.begun(self.host)
        epoch, reply = self._journal.find(key)
        if epoch is not None and command.epoch < epoch:
            return _stale(command, command.epoch, epoch)
        raised = None
        if epoch is None or command.epoch > epoch:
            raised = self._journal.raise_epoch(key, command.epoch, mark)
        run = self._running.get((mark.incarnation, key))
        if reply is not None:
            if raised is not None:
                await asyncio.shield(raised)
            return reply
        if run is None:
            run = self._start(key, command, verb, raised)
        else:
            run.epoch = max(run.epoch, command.epoch)
            run.renew_ticket(verb)
        return await _wait_for_reply(run)

    def _start(self, key: Key, command: _Command, verb: verbs.Change, raised: asyncio.Future[None] | None) -> _Run:
        earlier = [run for (_, other), run in self._running.items() if other.guest == key.guest]
        for run in earlier:
            reason = _interruption(verb, run.verb)
            if reason:
                run.interrupted = reason
                run.task.cancel()
        if isinstance(verb, verbs.ForceCompleteMigration):
            earlier = []
        run = _Run(command.epoch, command.incarnation, verb)
        # A separate task: a caller that gives up waiting must not interrupt the work.
        run.task = asyncio.create_task(self._run(run, key, command, raised, [other.task for other in earlier]))
        self._running[command.incarnation, key] = run
        run.task.add_done_callback(lambda task: self._ended((command.incarnation, key), task))
        return run

    def _ended(self, key: tuple[int, Key], task: asyncio.Task[bytes]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: there may be no caller left to raise it to

    async def _run(
        self,
        run: _Run,
        key: Key,
        command: _Command,
        raised: asyncio.Future[None] | None,
        earlier: list[asyncio.Task[bytes]],
    ) -> bytes:
        """`raised` is the record of the command's epoch, which must be durable before the command has effects."""
        if raised is not None:
            await asyncio.shield(raised)
        if earlier:
            await asyncio.wait(earlier)
            if (newest := self._journal.mark(self.host).incarnation) > run.incarnation:
                return _replaced(run.incarnation, newest)
            epoch, _ = self._journal.find(key)
            if epoch is not None and run.epoch < epoch:
                return _stale(command, run.epoch, epoch)
        reply = await self._perform(run.verb)
        encoded = messages.encode(reply)
        is_current = run.incarnation == self._journal.mark(self.host).incarnation
        if reply.ok and is_current and not isinstance(run.verb, _NOT_JOURNALLED):
            await self._journal.finish(key, encoded)
        return encoded

    async def _read(self, verb: verbs.Read) -> Reply:
        reply = await self._perform(verb)
        if not isinstance(verb, verbs.Describe) or not reply.ok:
            return reply
        mark = self._journal.mark(self.host)
        facts = messages.decode_answer(verb, reply)
        return messages.success(structs.replace(facts, incarnation=mark.incarnation, leases=mark.leases))

    async def _perform(self, verb: verbs.Change | verbs.Read) -> Reply:
        try:
            return messages.success(await self._call_driver(verb))
        except NoAnswer:
            raise
        except DriverError as error:
            return messages.failure(error.kind, error.message, passing=error.passing)
        except Exception as error:
            if _is_full(error):
                log.error("host %s: %s failed: storage is full", self.host, type(verb).__name__)
                return messages.failure("internal", f"the storage of host {self.host} is full", passing=True)
            log.exception("host %s: %s failed unexpectedly", self.host, type(verb).__name__)
            return messages.failure("internal", f"{type(error).__name__} in the agent of {self.host}; see its log")

    async def _call_driver(self, verb: verbs.Change | verbs.Read) -> object:
        """Call the method of the verb. Its parameters are the fields of the verb."""
        target = self._displays if isinstance(verb, _OF_DISPLAY_SESSIONS) else self._driver
        method = getattr(target, verb.method or verb.tag())
        return await method(**structs.asdict(verb))


def _is_full(error: Exception) -> bool:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, apsw.FullError)


def _key(command: _Command, verb: verbs.Change) -> Key:
    return Key(command.host, command.operation, command.step, command.round, verb.tag(), verb.guest_id)


def _interruption(new: verbs.Change, running: verbs.Change) -> str:
    """Return why the new change interrupts the running one; empty if it waits instead."""
    match new, running:
        case verbs.Destroy(), verbs.Destroy():
            return ""
        case verbs.Destroy(), _:
            return "the guest is being destroyed"
        case verbs.StopMigration(), verbs.MigrateLive() | verbs.ForceCompleteMigration():
            return "the migration was stopped"
    return ""


def _replaced(incarnation: int, newest: int) -> bytes:
    """The kind is one that makes the callers of every release stop at once."""
    message = f"the database (incarnation {incarnation}) was replaced by another one (incarnation {newest})"
    return messages.encode(messages.failure("stale epoch", message))


def _stale(command: _Command, epoch: int, seen: int) -> bytes:
    message = f"epoch {epoch} of operation {command.operation} is stale: {seen} was seen"
    return messages.encode(messages.failure("stale epoch", message))


async def _wait_for_reply(run: _Run) -> bytes:
    try:
        return await asyncio.shield(run.task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if not run.interrupted or (caller is not None and caller.cancelling()):
            raise
    return messages.encode(messages.failure("interrupted", run.interrupted))
