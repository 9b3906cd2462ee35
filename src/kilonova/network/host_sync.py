"""Sends each networked host its network plan: soon after a change, and again from time to time.

Every worker process does this. A plan has the time at which it was read, and a host keeps the newest plan, so several
senders do no harm. While there are no networked hosts, changes are ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time

import msgspec

from kilonova.hosts.messages import Command, NetworkPlan
from kilonova.hosts.messages.verbs import ApplyNetwork
from kilonova.hosts.networked import NetworkedHost, networked_hosts
from kilonova.hosts.registry import NETWORKED
from kilonova.hosts.transport import HostCallError, HostRefused, Transport
from kilonova.network.host_plans import compute_plans
from kilonova.network.resources import CHANGES_CHANNEL
from kilonova.store import Database, StoreError

log = logging.getLogger(__name__)

RESYNC_SECONDS = 30.0
# For a host that failed to apply its plan. A host that does not respond is registered again when it comes back.
RETRY_SECONDS = 5.0
# Changes within this time are sent together.
DEBOUNCE_SECONDS = 0.02
CALL_TIMEOUT_SECONDS = 60.0


class HostSync:
    def __init__(self, db: Database, hosts: Transport, resync_seconds: float = RESYNC_SECONDS) -> None:
        self._db = db
        self._transport = hosts
        self._resync_seconds = resync_seconds
        self._hosts: list[NetworkedHost] = []
        # By host: the digest of the plan that it has, the call that is under way, and the plan to send next.
        self._accepted: dict[str, bytes] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._next: dict[str, NetworkPlan] = {}
        self._woken = asyncio.Event()
        self._reload_hosts = True
        db.listen(CHANGES_CHANNEL, self._on_change)
        db.listen(NETWORKED, self._on_new_host)

    def _on_change(self) -> None:
        if self._hosts:
            self._woken.set()

    def _on_new_host(self) -> None:
        self._request_resync()
        self._woken.set()

    def _request_resync(self) -> None:
        self._reload_hosts = True
        self._accepted.clear()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                took = await self._sync()
                # Leaves two thirds of the time to other work where plans take long to compute.
                await asyncio.sleep(max(DEBOUNCE_SECONDS, 2 * took))
                try:
                    async with asyncio.timeout(self._resync_seconds):
                        await self._woken.wait()
                except TimeoutError:
                    self._request_resync()
        finally:
            for task in self._calls.values():
                task.cancel()

    async def _sync(self) -> float:
        """Send every host a plan that it does not have. Returns the seconds that the computation took."""
        began = time.monotonic()
        self._woken.clear()
        try:
            if self._reload_hosts:
                self._hosts = await networked_hosts(self._db)
                self._reload_hosts = False
            if self._hosts:
                for host, plan in (await compute_plans(self._db, self._hosts)).items():
                    self._send(host, plan)
        except StoreError as trouble:
            log.warning("network plans are sent later: %s", trouble)
        except Exception:
            # An error here must not end the process with all its other work.
            log.exception("network plans cannot be computed")
        return time.monotonic() - began

    def _send(self, host: str, plan: NetworkPlan) -> None:
        """Sends one plan at a time to a host. Of the plans that arrive meanwhile only the last is sent."""
        if host in self._calls:
            self._next[host] = plan
        elif self._accepted.get(host) != _digest(plan):
            task = self._calls[host] = asyncio.create_task(self._call(host, plan))
            task.add_done_callback(lambda done: self._on_call_done(host, done))

    async def _call(self, host: str, plan: NetworkPlan) -> None:
        command = Command(host=host, verb=ApplyNetwork(plan=plan))
        try:
            await self._transport.call(host, command, timeout=CALL_TIMEOUT_SECONDS)
        except HostCallError as trouble:
            self._accepted.pop(host, None)
            log.info("host %s did not apply its network plan: %s", host, trouble.message)
            if isinstance(trouble, HostRefused):
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._woken.set)
        else:
            self._accepted[host] = _digest(plan)

    def _on_call_done(self, host: str, done: asyncio.Task[None]) -> None:
        del self._calls[host]
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.error("the network plan of host %s was not sent", host, exc_info=error)
        following = self._next.pop(host, None)
        if following is not None:
            self._send(host, following)


def _digest(plan: NetworkPlan) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((plan.networks, plan.groups))).digest()
