"""Tells hosts of their networks: soon after something changed, and all of it again from time to time.

Every worker process does. A plan says when it was read, and of two the host keeps the one that was read later, so it
does no harm that several tell it. Where no host makes networks, this is asleep.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time

import msgspec

from kilonova.hosts.messages import ApplyNetwork, Command, NetworkPlan
from kilonova.hosts.registry import NETWORKED
from kilonova.hosts.transport import HostFailed, HostTrouble, Transport
from kilonova.network.access import CHANGED
from kilonova.network.plans import Host, compute, networked_hosts
from kilonova.store import Database, StoreError

log = logging.getLogger(__name__)

AGAIN_EVERY = 30.0
# For a host that answered that it could not. One that does not answer comes by itself.
SOON_AGAIN = 5.0
# Changes that come together are told together.
GATHER = 0.02
SECONDS = 60.0


class Pusher:
    def __init__(self, db: Database, hosts: Transport, again_every: float = AGAIN_EVERY) -> None:
        self._db = db
        self._transport = hosts
        self._again_every = again_every
        self._hosts: list[Host] = []
        # What each host has accepted; those that are being told, and what to tell them next.
        self._accepted: dict[str, bytes] = {}
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._next: dict[str, NetworkPlan] = {}
        self._stirred = asyncio.Event()
        self._look_for_hosts = True
        db.listen(CHANGED, self._changed)
        db.listen(NETWORKED, self._joined)

    def _changed(self) -> None:
        if self._hosts:
            self._stirred.set()

    def _joined(self) -> None:
        self._look_for_hosts = True
        self._accepted.clear()
        self._stirred.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                took = await self._round()
                # Where plans take long to compute, they are computed a third of the time at most.
                await asyncio.sleep(max(GATHER, 2 * took))
                try:
                    async with asyncio.timeout(self._again_every):
                        await self._stirred.wait()
                except TimeoutError:
                    self._look_for_hosts = True
                    self._accepted.clear()
        finally:
            for task in self._telling.values():
                task.cancel()

    async def _round(self) -> float:
        began = time.monotonic()
        self._stirred.clear()
        try:
            if self._look_for_hosts:
                self._hosts = await networked_hosts(self._db)
                self._look_for_hosts = False
            if self._hosts:
                for host, plan in (await compute(self._db, self._hosts)).items():
                    self._tell(host, plan)
        except StoreError as trouble:
            log.warning("hosts are told of their networks later: %s", trouble)
        except Exception:
            # One that cannot be computed must not end the process with all its other work.
            log.exception("the networks of hosts cannot be computed")
        return time.monotonic() - began

    def _tell(self, host: str, plan: NetworkPlan) -> None:
        """One plan at a time to a host; of those that come meanwhile the last."""
        if host in self._telling:
            self._next[host] = plan
        elif self._accepted.get(host) != _content(plan):
            task = self._telling[host] = asyncio.create_task(self._send(host, plan))
            task.add_done_callback(lambda done: self._told(host, done))

    async def _send(self, host: str, plan: NetworkPlan) -> None:
        try:
            await self._transport.call(host, Command(host=host, verb=ApplyNetwork(plan=plan)), timeout=SECONDS)
        except HostTrouble as trouble:
            self._accepted.pop(host, None)
            log.info("host %s has not its networks: %s", host, trouble.message)
            if isinstance(trouble, HostFailed):
                asyncio.get_running_loop().call_later(SOON_AGAIN, self._stirred.set)
        else:
            self._accepted[host] = _content(plan)

    def _told(self, host: str, done: asyncio.Task[None]) -> None:
        del self._telling[host]
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.error("host %s was not told of its networks", host, exc_info=error)
        following = self._next.pop(host, None)
        if following is not None:
            self._tell(host, following)


def _content(plan: NetworkPlan) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((plan.networks, plan.groups))).digest()
