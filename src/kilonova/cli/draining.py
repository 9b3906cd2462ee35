"""Emptying a host by the public API. Nothing is kept here: what is to be done follows from what the cloud shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kilonova.cli.cloud import VERSION, Cloud, Refused, Silent
from kilonova.cli.options import Failure

REASON = "draining"
COMPUTE = "nova-compute"
# How long the cloud may be away, restarting for instance, before the drain gives up.
PATIENCE = 120.0
_SOON, _LATER = 0.05, 1.0
_CONFLICTS = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """`source` is the host that a resized server was on before, and could be again."""

    id: str
    name: str
    status: str
    state: str
    task: str | None
    host: str | None
    progress: int | None
    source: str | None = None


@dataclass(frozen=True)
class Way:
    """How a server leaves its host, or is made ready to: an action. `named`: whether it takes a destination."""

    words: str
    action: str
    named: bool = False
    version: str = VERSION

    def body(self, destination: str | None) -> Any:
        if self.action == "os-migrateLive":
            return {"host": destination, "block_migration": "auto"}
        return {"host": destination} if self.named and destination else {} if self.action == "evacuate" else None


LIVE = Way("live migration", "os-migrateLive", named=True)
COLD = Way("migration", "migrate", named=True)
CONFIRM = Way("confirmation of the resize", "confirmResize")
OFFLOAD = Way("offloading", "shelveOffload")
# From 2.95 on evacuated servers would be left stopped, also those that ran.
EVACUATE = Way("evacuation", "evacuate", named=True, version="2.94")

UP = {"active": LIVE, "paused": LIVE, "stopped": COLD, "resized": CONFIRM, "shelved": OFFLOAD}
DOWN = {"active": EVACUATE, "stopped": EVACUATE, "error": EVACUATE, "resized": CONFIRM, "shelved": OFFLOAD}

# Of a migration that may still bring a server to its destination, or back to its source.
COMING = {"accepted", "queued", "preparing", "running", "pre-migrating", "migrating", "post-migrating"}
RETURNING = {"reverting", "confirming"}


@dataclass
class Outcome:
    """What became of a server: what was done, where it is now, or why it is left."""

    server: Server
    done: list[str] = field(default_factory=list)
    where: str | None = None
    why: str | None = None


class Watcher(Protocol):
    """Who is told of the progress, from any thread."""

    def doing(self, server: Server, words: str) -> None: ...

    def done(self, outcome: Outcome) -> None: ...


class Stopped(Exception):
    """Somebody does not want to wait any longer. What was begun goes on in the cloud."""


class Drain:
    def __init__(self, cloud: Cloud, host: str, to: Sequence[str] = ()) -> None:
        """Raises Failure where a name is no host's."""
        self._cloud = cloud
        self.host = host
        self.to = list(dict.fromkeys(to))
        if host in self.to:
            raise Failure(f"--to: {host} is the host that is to be emptied")
        for name in self.to:
            self._service(name, "--to: ")
        self.is_up = self._service(host)["state"] == "up"
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    # What there is to do

    def disable(self) -> bool:
        """Let nothing new come. False: it was so before, perhaps for another reason, which stays."""
        service = self._service(self.host)
        if service["status"] == "disabled":
            return False
        body = {"status": "disabled", "disabled_reason": REASON}
        self._cloud.put("compute", "os-services", service["id"], body=body)
        return True

    def servers(self) -> list[Server]:
        """Those that are on the host, and those that the host would have back if their resize were reverted."""
        listed = [*self._pages("servers", "detail", host=self.host, all_tenants="1")]
        there = {one["id"]: _server(one, self._source(one["id"]) if _resized(one) else None) for one in listed}
        waiting = self._pages("os-migrations", key="migrations", source_compute=self.host, status="finished")
        for server_id in {one["instance_uuid"] for one in waiting} - there.keys():
            server = self._look(server_id)
            if server is not None and self.concerns(server):
                there[server_id] = server
        return sorted(there.values(), key=lambda server: (server.name, server.id))

    def coming(self) -> int:
        """How many servers are on their way to the host, or back to it."""
        end = {**dict.fromkeys(COMING, "dest_compute"), **dict.fromkeys(RETURNING, "source_compute")}
        return sum(
            one[end[status]] == self.host
            for status in end
            for one in self._pages("os-migrations", key="migrations", host=self.host, status=status)
        )

    def concerns(self, server: Server) -> bool:
        return self.host in (server.host, server.source)

    def way(self, server: Server) -> Way | None:
        return (UP if self.is_up else DOWN).get(server.state)

    def why_not(self, server: Server) -> str:
        if server.state == "error" and self.is_up:
            return "is in ERROR; repair, rebuild or delete it"
        return f"is {server.status}, which cannot be moved"

    # Doing it

    def empty(self, servers: Iterable[Server], watcher: Watcher, parallel: int) -> list[Outcome]:
        """Have these moved away, some at a time. Raises Failure if the cloud is gone, KeyboardInterrupt."""
        from concurrent.futures import ThreadPoolExecutor, as_completed

        pool = ThreadPoolExecutor(max_workers=parallel)
        try:
            tasks = [pool.submit(self._carry, server, place, watcher) for place, server in enumerate(servers)]
            return [task.result() for task in as_completed(tasks)]
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _carry(self, server: Server, place: int, watcher: Watcher) -> Outcome:
        outcome = Outcome(server)
        try:
            outcome.why = self._move(outcome, self._destinations(place), watcher)
        except Refused as error:
            outcome.why = error.message
        watcher.done(outcome)
        return outcome

    def _move(self, outcome: Outcome, destinations: list[str | None], watcher: Watcher) -> str | None:
        """Step by step, as the server's state asks for it: why it is left, or None once it is away."""
        reasons: list[str] = []
        conflicts = 0
        while True:
            server = self._settled(outcome.server, watcher)
            if server is None or not self.concerns(server):
                outcome.where = server.host if server else None
                return None
            way = self.way(server)
            if way is None:
                return self.why_not(server)
            if not destinations:
                return "; ".join(reasons)
            destination = destinations[0] if way.named else None
            words = self._words(server, way, destination)
            watcher.doing(server, words)
            try:
                request_id = self._cloud.act(server.id, way.action, way.body(destination), version=way.version)
                self._settled(server, watcher, words)
                trouble = self._trouble(server.id, request_id)
            except Silent:
                continue  # whether it was heard shows in the server's state
            except Refused as error:
                conflicts += error.status == 409
                if error.status == 409 and conflicts < _CONFLICTS:
                    time.sleep(_LATER)  # somebody else was faster
                    continue
                trouble = error.message
            if trouble is None:
                outcome.done.append(words)
            elif way.named:
                reasons.append(f"{destination}: {trouble}" if destination else trouble)
                destinations = destinations[1:]
            else:
                return trouble

    def _words(self, server: Server, way: Way, destination: str | None) -> str:
        if way is CONFIRM:
            return f"{way.words} ({self._why_confirmed(server)})"
        return f"{way.words} to {destination}" if destination else way.words

    def _why_confirmed(self, server: Server) -> str:
        if server.host == self.host:
            return "it can be moved only after that"
        return f"{self.host} keeps it as it was before"

    def _destinations(self, place: int) -> list[str | None]:
        """In turn, so that they fill alike; who does not fit on one may fit on the next."""
        if not self.to:
            return [None]
        first = place % len(self.to)
        return [*self.to[first:], *self.to[:first]]

    def _settled(self, known: Server, watcher: Watcher, words: str | None = None) -> Server | None:
        """The server once nothing happens to it any more; None if it is gone."""
        pause = _SOON
        while True:
            server = self._look(known.id)
            if server is None or server.task is None:
                return server
            percent = f" {server.progress} %" if server.progress else ""
            watcher.doing(server, f"{words}{percent}" if words else f"waits: {server.task}{percent}")
            if self._stopping.wait(pause):
                raise Stopped
            pause = min(2 * pause, _LATER)

    def _trouble(self, server_id: str, request_id: str) -> str | None:
        """Why what was asked for came to nothing; None if it is done."""
        path = ("servers", server_id, "os-instance-actions", request_id)
        try:
            action = self._patiently(lambda: self._cloud.get("compute", *path))["instanceAction"]
        except Refused as error:
            if error.status == 404:
                return None  # the server was deleted
            raise
        if action["message"] is None:
            return None
        failed = [event for event in action["events"] if event["result"] == "Error" and event["details"]]
        if not failed:
            return str(action["message"])
        return str(max(failed, key=lambda event: str(event["finish_time"]))["details"])

    # Trying it

    def plan(self, server: Server, place: int) -> tuple[str, str | None, str | None]:
        """How the server would leave, where it would go if that can be told, and why it would not."""
        if server.task is not None:
            return f"after {server.task}", None, None
        way = self.way(server)
        if way is None:
            return "", None, self.why_not(server)
        reasons: list[str] = []
        for destination in self._destinations(place) if way.named else [None]:
            try:
                told = self._cloud.act(server.id, way.action, way.body(destination), version=way.version, dry_run=True)
            except Refused as error:
                reasons.append(error.message)
                continue
            if told["placed"] == told["servers"]:
                chosen = [plan["chosen"]["host"] for plan in told["plans"]]
                return self._in_words(server, way), chosen[0] if chosen else None, None
            reasons.append(told["plans"][0]["message"])
        return way.words, None, "; ".join(reasons)

    def _in_words(self, server: Server, way: Way) -> str:
        if way is COLD:
            return f"{way.words} and its confirmation"
        return self._words(server, way, None)

    # Asking

    def _service(self, host: str, option: str = "") -> dict[str, Any]:
        found = self._patiently(lambda: self._cloud.get("compute", "os-services", host=host, binary=COMPUTE))
        if not found["services"]:
            raise Failure(f"{option}there is no compute host {host!r}")
        service: dict[str, Any] = found["services"][0]
        return service

    def _look(self, server_id: str) -> Server | None:
        try:
            shown = self._patiently(lambda: self._cloud.get("compute", "servers", server_id))["server"]
        except Refused as error:
            if error.status != 404:
                raise
            return None
        return _server(shown, self._source(server_id) if _resized(shown) else None)

    def _source(self, server_id: str) -> str | None:
        found = self._pages("os-migrations", key="migrations", instance_uuid=server_id, status="finished")
        return next((str(one["source_compute"]) for one in found), None)

    def _pages(self, *path: str, key: str = "servers", **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        marker: str | None = None
        while True:
            page = self._patiently(lambda: self._cloud.get("compute", *path, **query, marker=marker))  # noqa: B023
            found += page[key]
            if f"{key}_links" not in page:
                return found
            marker = found[-1]["uuid" if key == "migrations" else "id"]

    def _patiently(self, ask: Callable[[], T]) -> T:
        """A cloud that is just being restarted is asked again."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except Silent:
                if time.monotonic() >= until:
                    raise
            if self._stopping.wait(_LATER):
                raise Stopped


def _resized(shown: dict[str, Any]) -> bool:
    return bool(shown["OS-EXT-STS:vm_state"] == "resized")


def _server(shown: dict[str, Any], source: str | None) -> Server:
    return Server(
        id=shown["id"],
        name=shown["name"],
        status=shown["status"],
        state=shown["OS-EXT-STS:vm_state"],
        task=shown["OS-EXT-STS:task_state"],
        host=shown["OS-EXT-SRV-ATTR:host"],
        progress=shown.get("progress"),
        source=source,
    )
