"""Checks that a server's instance actions, migrations and current host are consistent."""

from __future__ import annotations

import os
from typing import Any

from tests.support.cloud_process import Client

# Multiplies the length of random tests.
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "1"))
MIGRATION_TYPES = {
    "migrate": "migration",
    "resize": "resize",
    "live-migration": "live-migration",
    "evacuate": "evacuation",
}
DESTINATION_STATUSES = {"completed", "confirmed", "finished"}
SOURCE_STATUSES = {"reverted", "error", "failed", "cancelled"}


class History:
    """The actions and migrations of one server, which may be deleted."""

    def __init__(self, client: Client, server_id: str, migrations: list[dict[str, Any]]) -> None:
        path = f"/servers/{server_id}/os-instance-actions"
        answer = client.get("compute", path)
        assert answer.status == 200, answer.body
        self.server_id = server_id
        self.actions: list[dict[str, Any]] = answer.json()["instanceActions"][::-1]
        self.migrations = sorted(migrations, key=lambda migration: migration["id"])
        self._client = client
        self._path = path

    def events(self, request_id: str) -> list[dict[str, Any]]:
        answer = self._client.get("compute", f"{self._path}/{request_id}")
        assert answer.status == 200, answer.body
        events: list[dict[str, Any]] = answer.json()["instanceAction"]["events"]
        return events

    def check(self, server: dict[str, Any] | None) -> None:
        """`server` is its API view; None if it is deleted."""
        for action in self.actions:
            self._check_ended(action)
        self._check_moves(server)

    def check_acknowledged(self, name: str, request_id: str) -> None:
        named = [action["action"] for action in self.actions if action["request_id"] == request_id]
        assert named == [name], (self.server_id, name, named)

    def _check_ended(self, action: dict[str, Any]) -> None:
        events = self.events(action["request_id"])
        for event in events:
            assert event["finish_time"], (self.server_id, action, event)
            assert event["result"] in ("Success", "Error"), (self.server_id, action, event)
        if action["message"] == "Error":
            # An operation that was cancelled before its first step has no events.
            assert not events or any(event["result"] == "Error" and event["details"] for event in events), events
        else:
            assert [event["result"] for event in events[-1:]] == ["Success"], (self.server_id, action, events)

    def _check_moves(self, server: dict[str, Any] | None) -> None:
        """Every move starts at the host where the previous one ended."""
        remaining = iter(self.migrations)
        hosts: set[str] | None = None  # hosts where the server may be; None: unknown
        for action in self.actions:
            name, succeeded = action["action"], action["message"] != "Error"
            if name in MIGRATION_TYPES:
                migration = next(remaining)
                context = (self.server_id, action, migration)
                assert migration["migration_type"] == MIGRATION_TYPES[name], context
                assert hosts is None or migration["source_compute"] in hosts, (context, hosts)
                assert (
                    migration["status"] in DESTINATION_STATUSES or migration["status"] == "reverted"
                ) == succeeded, context
                hosts = self._hosts_after(migration)
            elif name in ("create", "unshelve", "shelveOffload"):
                hosts = None
        assert next(remaining, None) is None, self.migrations
        if server is not None:
            self._check_current_host(server, hosts)

    @staticmethod
    def _hosts_after(migration: dict[str, Any]) -> set[str]:
        if migration["status"] in DESTINATION_STATUSES:
            return {migration["dest_compute"]}
        assert migration["status"] in SOURCE_STATUSES, migration
        source = {migration["source_compute"]}
        # If a migration is undone after the guest has arrived, the server stays at the destination.
        failed_live = migration["migration_type"] == "live-migration" and migration["status"] in ("failed", "cancelled")
        return source | {migration["dest_compute"]} if failed_live and migration["dest_compute"] else source

    def _check_current_host(self, server: dict[str, Any], hosts: set[str] | None) -> None:
        host = server["OS-EXT-SRV-ATTR:host"]
        assert hosts is None or host in hosts, (server, hosts)
        unconfirmed = [migration for migration in self.migrations if migration["status"] == "finished"]
        if server["status"] == "ERROR":  # only a failed create or delete ends in ERROR
            failed = {action["action"] for action in self.actions if action["message"] == "Error"}
            assert failed & {"create", "delete"}, (server, self.actions)
        else:
            assert len(unconfirmed) == (server["status"] == "VERIFY_RESIZE"), (server, unconfirmed)
        if unconfirmed:
            assert unconfirmed[0] == self.migrations[-1], self.migrations
