"""Drains a host through the public API.

A drain keeps no state of its own: each step follows from what the API shows, so it can be interrupted and repeated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kilonova.cli.cloud import VERSION, ApiError, Cloud, CloudUnreachable
from kilonova.cli.options import Failure

REASON = "draining"
COMPUTE = "nova-compute"
# How long the drain retries while the cloud does not respond, for instance during a restart.
RETRY_TIMEOUT_SECONDS = 120.0
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 1.0
_MAX_CONFLICTS = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """A server as the API shows it. `source` is the host to which a revert would return a resized server."""

    id: str
    name: str
    status: str
    state: str
    task: str | None
    host: str | None
    progress: int | None
    source: str | None = None


@dataclass(frozen=True)
class DrainAction:
    """A server action that moves a server off its host, or prepares the move."""

    description: str
    action: str
    takes_destination: bool = False
    version: str = VERSION

    def body(self, destination: str | None) -> object:
        if self.action == "os-migrateLive":
            return {"host": destination, "block_migration": "auto"}
        if self.takes_destination and destination:
            return {"host": destination}
        return {} if self.action == "evacuate" else None


LIVE = DrainAction("live migration", "os-migrateLive", takes_destination=True)
COLD = DrainAction("migration", "migrate", takes_destination=True)
CONFIRM = DrainAction("confirmation of the resize", "confirmResize")
OFFLOAD = DrainAction("offloading", "shelveOffload")
# From 2.95 on, evacuated servers stay stopped even if they were running.
EVACUATE = DrainAction("evacuation", "evacuate", takes_destination=True, version="2.94")

ACTIONS_IF_UP = {"active": LIVE, "paused": LIVE, "stopped": COLD, "resized": CONFIRM, "shelved": OFFLOAD}
ACTIONS_IF_DOWN = {"active": EVACUATE, "stopped": EVACUATE, "error": EVACUATE, "resized": CONFIRM, "shelved": OFFLOAD}

# Statuses of migrations that may still bring a server to their destination, or back to their source.
ARRIVING_STATUSES = {"accepted", "queued", "preparing", "running", "pre-migrating", "migrating", "post-migrating"}
RETURNING_STATUSES = {"reverting", "confirming"}


@dataclass
class Outcome:
    """The result for a server: the actions done, and its new host or the reason why it stays."""

    server: Server
    done: list[str] = field(default_factory=list)
    host: str | None = None
    failure: str | None = None


class ProgressListener(Protocol):
    """Receives progress, from any thread."""

    def progress(self, server: Server, text: str) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


class Stopped(Exception):
    """The user interrupted the drain. Running operations continue in the cloud."""


class Drain:
    def __init__(self, cloud: Cloud, host: str, to: Sequence[str] = ()) -> None:
        """Raises Failure if a name is not a compute host."""
        self._cloud = cloud
        self.host = host
        self.to = list(dict.fromkeys(to))
        if host in self.to:
            raise Failure(f"--to: {host} is the host to be drained")
        for name in self.to:
            self._service(name, "--to: ")
        self.is_up = self._service(host)["state"] == "up"
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    # Remaining work

    def disable(self) -> bool:
        """Disable the compute service; False if it was disabled before, whose reason is kept."""
        service = self._service(self.host)
        if service["status"] == "disabled":
            return False
        body = {"status": "disabled", "disabled_reason": REASON}
        self._cloud.put("compute", "os-services", service["id"], body=body)
        return True

    def servers(self) -> list[Server]:
        """The servers on the host, and those that a reverted resize would return to it."""
        listed = [*self._pages("servers", "detail", host=self.host, all_tenants="1")]
        found = {one["id"]: _server(one, self._resize_source(one["id"]) if _resized(one) else None) for one in listed}
        waiting = self._pages("os-migrations", key="migrations", source_compute=self.host, status="finished")
        for server_id in {one["instance_uuid"] for one in waiting} - found.keys():
            server = self._find_server(server_id)
            if server is not None and self.concerns(server):
                found[server_id] = server
        return sorted(found.values(), key=lambda server: (server.name, server.id))

    def arriving(self) -> int:
        """The number of servers that are migrating to the host, or back to it."""
        end = {
            **dict.fromkeys(ARRIVING_STATUSES, "dest_compute"),
            **dict.fromkeys(RETURNING_STATUSES, "source_compute"),
        }
        return sum(
            one[end[status]] == self.host
            for status in end
            for one in self._pages("os-migrations", key="migrations", host=self.host, status=status)
        )

    def concerns(self, server: Server) -> bool:
        return self.host in (server.host, server.source)

    def action(self, server: Server) -> DrainAction | None:
        return (ACTIONS_IF_UP if self.is_up else ACTIONS_IF_DOWN).get(server.state)

    def immovable_reason(self, server: Server) -> str:
        if server.state == "error" and self.is_up:
            return "is in ERROR; repair, rebuild or delete it"
        return f"is {server.status}, which cannot be moved"

    # Moving

    def move_all(self, servers: Iterable[Server], listener: ProgressListener, parallel: int) -> list[Outcome]:
        """Move the servers away, `parallel` at a time. Raises Failure if the cloud does not respond."""
        from concurrent.futures import ThreadPoolExecutor, as_completed

        pool = ThreadPoolExecutor(max_workers=parallel)
        try:
            tasks = [pool.submit(self._drain_server, server, index, listener) for index, server in enumerate(servers)]
            return [task.result() for task in as_completed(tasks)]
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _drain_server(self, server: Server, index: int, listener: ProgressListener) -> Outcome:
        outcome = Outcome(server)
        try:
            outcome.failure = self._move(outcome, self._destinations(index), listener)
        except ApiError as error:
            outcome.failure = error.message
        listener.finished(outcome)
        return outcome

    def _move(self, outcome: Outcome, destinations: list[str | None], listener: ProgressListener) -> str | None:
        """Run actions until the server has left: None, or the reason why it stays."""
        failures: list[str] = []
        conflicts = 0
        while True:
            server = self._wait_until_idle(outcome.server, listener)
            if server is None or not self.concerns(server):
                outcome.host = server.host if server else None
                return None
            action = self.action(server)
            if action is None:
                return self.immovable_reason(server)
            if not destinations:
                return "; ".join(failures)
            destination = destinations[0] if action.takes_destination else None
            text = self._action_text(server, action, destination)
            listener.progress(server, text)
            try:
                request_id = self._act(server, action, destination)
                self._wait_until_idle(server, listener, text)
                failure = self._action_error(server.id, request_id)
            except CloudUnreachable:
                continue  # the server's state shows whether the request arrived
            except ApiError as error:
                conflicts += error.status == 409
                if error.status == 409 and conflicts < _MAX_CONFLICTS:
                    time.sleep(_MAX_PAUSE_SECONDS)  # another request changed the server
                    continue
                failure = error.message
            if failure is None:
                outcome.done.append(text)
            elif action.takes_destination:
                failures.append(f"{destination}: {failure}" if destination else failure)
                destinations = destinations[1:]
            else:
                return failure

    def _action_text(self, server: Server, action: DrainAction, destination: str | None) -> str:
        if action is CONFIRM:
            return f"{action.description} ({self._confirm_reason(server)})"
        return f"{action.description} to {destination}" if destination else action.description

    def _confirm_reason(self, server: Server) -> str:
        if server.host == self.host:
            return "required before it can be moved"
        return f"{self.host} still has its old guest"

    def _destinations(self, index: int) -> list[str | None]:
        """The destinations to try, rotated by the server's `index`, so that they fill evenly."""
        if not self.to:
            return [None]
        first = index % len(self.to)
        return [*self.to[first:], *self.to[:first]]

    def _wait_until_idle(self, known: Server, listener: ProgressListener, text: str | None = None) -> Server | None:
        """Wait until the server has no task; None if it is deleted."""
        pause = _MIN_PAUSE_SECONDS
        while True:
            server = self._find_server(known.id)
            if server is None or server.task is None:
                return server
            percent = f" {server.progress} %" if server.progress else ""
            listener.progress(server, f"{text}{percent}" if text else f"waits: {server.task}{percent}")
            if self._stopping.wait(pause):
                raise Stopped
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _action_error(self, server_id: str, request_id: str) -> str | None:
        """Why the requested action failed; None if it succeeded."""
        path = ("servers", server_id, "os-instance-actions", request_id)
        try:
            action = self._retry(lambda: self._cloud.get("compute", *path))["instanceAction"]
        except ApiError as error:
            if error.status == 404:
                return None  # the server was deleted
            raise
        if action["message"] is None:
            return None
        failed = [event for event in action["events"] if event["result"] == "Error" and event["details"]]
        if not failed:
            return str(action["message"])
        return str(max(failed, key=lambda event: str(event["finish_time"]))["details"])

    # Dry run

    def plan(self, server: Server, index: int) -> tuple[str, str | None, str | None]:
        """The action that would move the server, its destination if known, and the reason if it cannot move."""
        if server.task is not None:
            return f"after {server.task}", None, None
        action = self.action(server)
        if action is None:
            return "", None, self.immovable_reason(server)
        failures: list[str] = []
        for destination in self._destinations(index) if action.takes_destination else [None]:
            try:
                response = self._act(server, action, destination, dry_run=True)
            except ApiError as error:
                failures.append(error.message)
                continue
            if response["placed"] == response["servers"]:
                chosen = [plan["chosen"]["host"] for plan in response["plans"]]
                return self._plan_text(server, action), chosen[0] if chosen else None, None
            failures.append(response["plans"][0]["message"])
        return action.description, None, "; ".join(failures)

    def _plan_text(self, server: Server, action: DrainAction) -> str:
        if action is COLD:
            return f"{action.description} and its confirmation"
        return self._action_text(server, action, None)

    # Requests

    def _act(self, server: Server, action: DrainAction, destination: str | None, *, dry_run: bool = False) -> Any:
        body = action.body(destination)
        return self._cloud.act(server.id, action.action, body, version=action.version, dry_run=dry_run)

    def _service(self, host: str, option: str = "") -> dict[str, Any]:
        found = self._retry(lambda: self._cloud.get("compute", "os-services", host=host, binary=COMPUTE))
        if not found["services"]:
            raise Failure(f"{option}there is no compute host {host!r}")
        service: dict[str, Any] = found["services"][0]
        return service

    def _find_server(self, server_id: str) -> Server | None:
        try:
            shown = self._retry(lambda: self._cloud.get("compute", "servers", server_id))["server"]
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return _server(shown, self._resize_source(server_id) if _resized(shown) else None)

    def _resize_source(self, server_id: str) -> str | None:
        found = self._pages("os-migrations", key="migrations", instance_uuid=server_id, status="finished")
        return next((str(one["source_compute"]) for one in found), None)

    def _pages(self, *path: str, key: str = "servers", **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        marker: str | None = None
        while True:
            page = self._retry(lambda: self._cloud.get("compute", *path, **query, marker=marker))  # noqa: B023
            found += page[key]
            if f"{key}_links" not in page:
                return found
            marker = found[-1]["uuid" if key == "migrations" else "id"]

    def _retry(self, request: Callable[[], T]) -> T:
        """Repeat the request while the cloud does not respond, as during a restart."""
        until = time.monotonic() + RETRY_TIMEOUT_SECONDS
        while True:
            try:
                return request()
            except CloudUnreachable:
                if time.monotonic() >= until:
                    raise
            if self._stopping.wait(_MAX_PAUSE_SECONDS):
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
