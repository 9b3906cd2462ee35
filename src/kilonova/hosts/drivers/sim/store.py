"""`sim.db`: the simulated hosts, their guests, and the rules of what shall go wrong on them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec

from kilonova import clock
from kilonova.hosts import messages
from kilonova.hosts.disk import open_file
from kilonova.hosts.messages import Guest, GuestState, Power

FILE_NAME = "sim.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS hosts (
    name TEXT PRIMARY KEY,
    vcpus INTEGER NOT NULL,
    memory_mb INTEGER NOT NULL,
    disk_gb INTEGER NOT NULL,
    booted_at REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS guests (
    host TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    power TEXT NOT NULL,
    vcpus INTEGER NOT NULL,
    ram_mb INTEGER NOT NULL,
    disk_gb INTEGER NOT NULL,
    spec BLOB NOT NULL,
    created_at REAL NOT NULL,
    boots INTEGER NOT NULL,
    PRIMARY KEY (host, id)
);
CREATE TABLE IF NOT EXISTS rules (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    host TEXT NOT NULL,
    step TEXT NOT NULL,
    mode TEXT,
    message TEXT,
    times INTEGER,
    seconds REAL,
    fired INTEGER NOT NULL DEFAULT 0
);
"""

_STATE = "id, name, power, vcpus, ram_mb, disk_gb, created_at, boots"


class Size(msgspec.Struct, frozen=True):
    """How big a simulated host is."""

    vcpus: int = 32
    memory_mb: int = 131072
    disk_gb: int = 2048


class SimStore:
    """One file for all simulated hosts of a process. Calls take microseconds and are made on the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = open_file(path, _SCHEMA)
        self._add_booted_at()

    def close(self) -> None:
        self.connection.close()

    def _add_booted_at(self) -> None:
        """Files of older releases have no such column."""
        if not any(row[1] == "booted_at" for row in self.connection.execute("PRAGMA table_info(hosts)")):
            with contextlib.suppress(apsw.SQLError):  # another process was quicker
                self.connection.execute("ALTER TABLE hosts ADD COLUMN booted_at REAL")
                self.connection.execute("UPDATE hosts SET booted_at = ? WHERE booted_at IS NULL", (clock.now(),))

    # Hosts

    def set_hosts(self, sizes: Mapping[str, Size]) -> None:
        """Makes or resizes these hosts. Others stay, for their guests may still be there.

        A simulated host boots when it is made, and runs on while no process serves it.
        """
        known = self.hosts()
        now = clock.now()
        changed = [
            (name, *msgspec.structs.astuple(size), now) for name, size in sizes.items() if known.get(name) != size
        ]
        if not changed:
            return
        with self.connection:
            self.connection.executemany(
                "INSERT INTO hosts (name, vcpus, memory_mb, disk_gb, booted_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET vcpus = excluded.vcpus, memory_mb = excluded.memory_mb,"
                " disk_gb = excluded.disk_gb, booted_at = coalesce(booted_at, excluded.booted_at)",
                changed,
            )

    def hosts(self) -> dict[str, Size]:
        rows = self.connection.execute("SELECT name, vcpus, memory_mb, disk_gb FROM hosts ORDER BY name")
        return {name: Size(*numbers) for name, *numbers in rows}

    def booted_at(self, host: str) -> float | None:
        row = self.connection.execute("SELECT booted_at FROM hosts WHERE name = ?", (host,)).fetchone()
        return None if row is None else row[0]

    # Guests

    def add_guest(self, host: str, guest: Guest) -> None:
        flavor = guest.flavor
        values = (guest.name, flavor.vcpus, flavor.ram_mb, flavor.disk_gb, messages.encode(guest), clock.now())
        self.connection.execute(
            "INSERT INTO guests (host, id, name, power, vcpus, ram_mb, disk_gb, spec, created_at, boots)"
            " VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?, 1)",
            (host, guest.id, *values),
        )

    def remove_guest(self, host: str, guest_id: str) -> None:
        self.connection.execute("DELETE FROM guests WHERE host = ? AND id = ?", (host, guest_id))

    def set_power(self, host: str, guest_id: str, power: Power, boots: int = 0) -> None:
        self.connection.execute(
            "UPDATE guests SET power = ?, boots = boots + ? WHERE host = ? AND id = ?",
            (power, boots, host, guest_id),
        )

    def guest(self, host: str, guest_id: str) -> GuestState | None:
        sql = f"SELECT {_STATE} FROM guests WHERE host = ? AND id = ?"
        row = self.connection.execute(sql, (host, guest_id)).fetchone()
        return None if row is None else _state(row)

    def spec(self, host: str, guest_id: str) -> Guest | None:
        """What the guest was built from."""
        sql = "SELECT spec FROM guests WHERE host = ? AND id = ?"
        row = self.connection.execute(sql, (host, guest_id)).fetchone()
        return None if row is None else messages.decode_guest(row[0])

    def guests(self, host: str) -> list[GuestState]:
        sql = f"SELECT {_STATE} FROM guests WHERE host = ? ORDER BY id"
        return [_state(row) for row in self.connection.execute(sql, (host,))]

    def all_guests(self) -> list[tuple[str, GuestState]]:
        sql = f"SELECT host, {_STATE} FROM guests ORDER BY host, created_at"
        return [(host, _state(row)) for host, *row in self.connection.execute(sql)]


def _state(row: Any) -> GuestState:
    guest_id, name, power, vcpus, ram_mb, disk_gb, created_at, boots = row
    return GuestState(
        id=guest_id,
        name=name,
        power=power,
        vcpus=vcpus,
        ram_mb=ram_mb,
        disk_gb=disk_gb,
        created_at=created_at,
        boots=boots,
    )
