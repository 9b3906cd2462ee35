"""Marks every command with the incarnation of the database, and calls no host that is ahead of the database.

A host is ahead if it has executed commands that the database does not know of: an older copy of the database was put in
its place. Such a host counts as unreachable, so that operations go on without it.
docs/decisions/0025-restored-databases.md gives the reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import structs

from kilonova.hosts.heartbeat import ServedHosts
from kilonova.hosts.messages import Command, HostFacts
from kilonova.hosts.messages.verbs import Answer, Describe, Verb
from kilonova.hosts.transport import HostCallError, HostUnreachable, Transport, describe
from kilonova.store import Database, incarnation
from kilonova.store.incarnation import Mark

log = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT_SECONDS = 5.0


class Hosts(ServedHosts, Transport, Protocol):
    """The hosts that a process serves, and the transport to them."""


class FencedHosts:
    """`mark`: the mark of the database at the start of the process."""

    def __init__(self, hosts: Hosts, db: Database, mark: Mark) -> None:
        self._hosts = hosts
        self._db = db
        self._mark = mark
        self._checked: set[str] = set()
        # By host, the reason why it is not called.
        self.ahead: dict[str, str] = {}

    def leased(self, number: int) -> None:
        """Record the number of a lease that this process has taken."""
        self._mark = max(self._mark, Mark(self._mark.incarnation, number))

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        if host not in self._checked and not isinstance(command.verb, Describe):
            await self._check_first(host)
        if host in self.ahead:
            raise HostUnreachable(host, self.ahead[host])
        marked = structs.replace(command, incarnation=self._mark.incarnation, leases=self._mark.leases)
        return await self._hosts.call(host, marked, timeout=timeout)

    @property
    def names(self) -> Sequence[str]:
        return self._hosts.names

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        found = await self._hosts.facts(hosts)
        for facts in found:
            await self._check(facts)
        return [facts for facts in found if facts.host not in self.ahead]

    def unreachable(self, hosts: Iterable[str]) -> list[str]:
        names = list(hosts)
        return [*self._hosts.unreachable(names), *(host for host in names if host in self.ahead)]

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        return list(self._hosts.outdated(hosts))

    async def _check_first(self, host: str) -> None:
        try:
            await self._check(await describe(self._hosts, host, timeout=_DESCRIBE_TIMEOUT_SECONDS))
        except HostUnreachable:
            raise
        except HostCallError as error:
            log.info("host %s cannot be described: %s", host, error.message)

    async def _check(self, facts: HostFacts) -> None:
        """Compare the host's mark with the database. Another process may have taken leases, so read it again."""
        host, seen = facts.host, Mark(facts.incarnation, facts.leases)
        self._checked.add(host)
        if seen <= self._mark or seen <= (known := await incarnation.read(self._db)):
            self.ahead.pop(host, None)
            return
        reason = (
            f"the database is older than host {host}, which has executed commands of incarnation {seen.incarnation}, "
            f"lease {seen.leases}; the database is at incarnation {known.incarnation}, lease {known.leases}. If an "
            "older copy was put in its place, stop all processes and accept it by `kilonova db adopt`"
        )
        if host not in self.ahead:
            log.error("%s", reason)
        self.ahead[host] = reason
