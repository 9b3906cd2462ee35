"""Whether what is told of the past of a server agrees: its actions, its migrations, and where it is now.

Also how long random histories are.
"""

from __future__ import annotations

import os
from typing import Any

from tests.support.process import Client

# How many times as long histories are: more where time does not matter.
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "1"))
MOVES = {"migrate": "migration", "resize": "resize", "live-migration": "live-migration", "evacuate": "evacuation"}
ARRIVED = {"completed", "confirmed", "finished"}
STAYED = {"reverted", "error", "failed", "cancelled"}


class History:
    """Of one server, which may be deleted."""

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
        """`server` is how it is shown, if it is still there."""
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
            # One that was cancelled before it began has nothing to tell.
            assert not events or any(event["result"] == "Error" and event["details"] for event in events), events
        else:
            assert [event["result"] for event in events[-1:]] == ["Success"], (self.server_id, action, events)

    def _check_moves(self, server: dict[str, Any] | None) -> None:
        """Every move begins where the one before has left the server."""
        rest = iter(self.migrations)
        places: set[str] | None = None  # where it may be, if anybody could tell
        for action in self.actions:
            name, well = action["action"], action["message"] != "Error"
            if name in MOVES:
                migration = next(rest)
                told = (self.server_id, action, migration)
                assert migration["migration_type"] == MOVES[name], told
                assert places is None or migration["source_compute"] in places, (told, places)
                assert (migration["status"] in ARRIVED or migration["status"] == "reverted") == well, told
                places = self._after(migration)
            elif name in ("create", "unshelve", "shelveOffload"):
                places = None
        assert next(rest, None) is None, self.migrations
        if server is not None:
            self._check_now(server, places)

    @staticmethod
    def _after(migration: dict[str, Any]) -> set[str]:
        if migration["status"] in ARRIVED:
            return {migration["dest_compute"]}
        assert migration["status"] in STAYED, migration
        source = {migration["source_compute"]}
        # A guest that has arrived when its migration is undone, and cannot be brought back, takes its server along.
        failed_live = migration["migration_type"] == "live-migration" and migration["status"] in ("failed", "cancelled")
        return source | {migration["dest_compute"]} if failed_live and migration["dest_compute"] else source

    def _check_now(self, server: dict[str, Any], places: set[str] | None) -> None:
        host = server["OS-EXT-SRV-ATTR:host"]
        assert places is None or host in places, (server, places)
        waits = [migration for migration in self.migrations if migration["status"] == "finished"]
        if server["status"] == "ERROR":  # only what could neither be built nor be removed
            failed = {action["action"] for action in self.actions if action["message"] == "Error"}
            assert failed & {"create", "delete"}, (server, self.actions)
        else:
            assert len(waits) == (server["status"] == "VERIFY_RESIZE"), (server, waits)
        if waits:
            assert waits[0] == self.migrations[-1], self.migrations
