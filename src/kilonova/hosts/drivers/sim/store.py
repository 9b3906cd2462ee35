"""The file `sim.db`: the simulated hosts, their guests and slots, and the rules for failures and latencies."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
import msgspec

from kilonova import clock
from kilonova.hosts import messages
from kilonova.hosts.messages import Guest, GuestState, Power
from kilonova.hosts.sqlite_files import open_file

SIM_FILE_NAME = "sim.db"

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
    disk TEXT NOT NULL DEFAULT '',
    volumes TEXT NOT NULL DEFAULT '',
    rescue TEXT,
    PRIMARY KEY (host, id)
);
CREATE TABLE IF NOT EXISTS kept (
    host TEXT NOT NULL,
    id TEXT NOT NULL,
    slot TEXT NOT NULL,
    name TEXT NOT NULL,
    power TEXT NOT NULL,
    vcpus INTEGER NOT NULL,
    ram_mb INTEGER NOT NULL,
    disk_gb INTEGER NOT NULL,
    spec BLOB NOT NULL,
    created_at REAL NOT NULL,
    boots INTEGER NOT NULL,
    disk TEXT NOT NULL,
    volumes TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (host, id, slot)
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
    fired INTEGER NOT NULL DEFAULT 0,
    chance REAL
);
"""

# Columns that files of older releases lack, and the statements that fill them.
_ADDED_COLUMNS = (
    ("hosts", "booted_at", "REAL", "UPDATE hosts SET booted_at = :now WHERE booted_at IS NULL"),
    ("guests", "disk", "TEXT NOT NULL DEFAULT ''", "UPDATE guests SET disk = lower(hex(randomblob(16)))"),
    ("rules", "chance", "REAL", ""),
    ("guests", "volumes", "TEXT NOT NULL DEFAULT ''", ""),
    ("kept", "volumes", "TEXT NOT NULL DEFAULT ''", ""),
    ("guests", "rescue", "TEXT", ""),
)

_STATE_COLUMNS = "id, name, power, vcpus, ram_mb, disk_gb, created_at, boots, disk, volumes"
# Columns that are set when a guest is built.
_SPEC_COLUMNS = "name, vcpus, ram_mb, disk_gb, spec, volumes, created_at"


class Size(msgspec.Struct, frozen=True):
    """The size of a simulated host."""

    vcpus: int = 32
    memory_mb: int = 131072
    disk_gb: int = 2048


class SimStore:
    """One file for all simulated hosts of a process. Calls are short enough to run on the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = open_file(path, _SCHEMA)
        self._add_missing_columns()

    def close(self) -> None:
        self.connection.close()

    def _add_missing_columns(self) -> None:
        for table, column, kind, fill in _ADDED_COLUMNS:
            if not any(row[1] == column for row in self.connection.execute(f"PRAGMA table_info({table})")):
                with contextlib.suppress(apsw.SQLError), self.connection:  # another process may have added it
                    self.connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
                    self.connection.execute(fill, {"now": clock.now()})

    # Hosts

    def set_hosts(self, sizes: Mapping[str, Size]) -> None:
        """Create or resize these hosts. Other hosts stay, because they may have guests.

        A simulated host boots when it is created, and keeps running while no process serves it.
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

    def add_guest(self, host: str, guest: Guest, disk: str, *, running: bool = True) -> None:
        power: Power = "running" if running else "shutdown"
        values = (host, guest.id, *_spec_values(guest), power, int(running), disk)
        self.connection.execute(
            f"INSERT INTO guests (host, id, {_SPEC_COLUMNS}, power, boots, disk) VALUES ({_placeholders(12)})", values
        )

    def remove_guest(self, host: str, guest_id: str) -> None:
        self.connection.execute("DELETE FROM guests WHERE host = ? AND id = ?", (host, guest_id))

    def set_power(self, host: str, guest_id: str, power: Power, boots: int = 0) -> None:
        self.connection.execute(
            "UPDATE guests SET power = ?, boots = boots + ? WHERE host = ? AND id = ?",
            (power, boots, host, guest_id),
        )

    def rescue(self, host: str, guest_id: str) -> str | None:
        """Return the rescue image of a guest in rescue: "" for its own image. None if it is not in rescue."""
        sql = "SELECT rescue FROM guests WHERE host = ? AND id = ?"
        row = self.connection.execute(sql, (host, guest_id)).fetchone()
        return None if row is None else row[0]

    def set_rescue(self, host: str, guest_id: str, image_id: str | None) -> None:
        self.connection.execute("UPDATE guests SET rescue = ? WHERE host = ? AND id = ?", (image_id, host, guest_id))

    def guest(self, host: str, guest_id: str) -> GuestState | None:
        sql = f"SELECT {_STATE_COLUMNS} FROM guests WHERE host = ? AND id = ?"
        row = self.connection.execute(sql, (host, guest_id)).fetchone()
        return None if row is None else _state(row)

    def spec(self, host: str, guest_id: str) -> Guest | None:
        """Return the definition that the guest was built from."""
        sql = "SELECT spec FROM guests WHERE host = ? AND id = ?"
        row = self.connection.execute(sql, (host, guest_id)).fetchone()
        return None if row is None else messages.decode_guest(row[0])

    def set_spec(self, host: str, guest: Guest) -> None:
        self.connection.execute(
            "UPDATE guests SET spec = ?, volumes = ? WHERE host = ? AND id = ?",
            (messages.encode(guest), _volume_ids(guest), host, guest.id),
        )

    def writers(self, volume_id: str) -> list[tuple[str, Guest]]:
        """Return the running guests with the volume, and their hosts."""
        rows = self.connection.execute(
            "SELECT host, spec FROM guests WHERE volumes LIKE '%' || ? || '%' AND power IN ('running', 'paused')",
            (volume_id,),
        )
        return [(host, messages.decode_guest(spec)) for host, spec in rows]

    def guests(self, host: str) -> list[GuestState]:
        """Return all guests of the host, including those in slots."""
        return [guest for _, guest in self._all("WHERE host = ?1", host)]

    def all_guests(self) -> list[tuple[str, GuestState]]:
        return self._all("")

    def _all(self, condition: str, *values: str) -> list[tuple[str, GuestState]]:
        sql = (
            f"SELECT host, {_STATE_COLUMNS}, '' AS slot FROM guests {condition}"
            f" UNION ALL SELECT host, {_STATE_COLUMNS}, slot FROM kept {condition} ORDER BY host, created_at, id, slot"
        )
        return [(host, _state(row)) for host, *row in self.connection.execute(sql, values)]

    # Slots

    def slot(self, host: str, guest_id: str, slot: str) -> GuestState | None:
        sql = f"SELECT {_STATE_COLUMNS}, slot FROM kept WHERE host = ? AND id = ? AND slot = ?"
        row = self.connection.execute(sql, (host, guest_id, slot)).fetchone()
        return None if row is None else _state(row)

    def prepare_slot(self, host: str, guest: Guest, slot: str) -> None:
        """Create a slot for an incoming guest."""
        self.connection.execute(
            f"INSERT OR IGNORE INTO kept (host, id, slot, {_SPEC_COLUMNS}, power, boots, disk)"
            f" VALUES ({_placeholders(13)})",
            (host, guest.id, slot, *_spec_values(guest), "shutdown", 0, ""),
        )

    def remove_slot(self, host: str, guest_id: str, slot: str) -> None:
        self.connection.execute("DELETE FROM kept WHERE host = ? AND id = ? AND slot = ?", (host, guest_id, slot))

    def park(self, host: str, guest_id: str, slot: str) -> None:
        with self.connection:
            self.connection.execute(
                f"INSERT INTO kept (host, id, slot, {_SPEC_COLUMNS}, power, boots, disk)"
                f" SELECT host, id, ?, {_SPEC_COLUMNS}, 'shutdown', boots, disk FROM guests WHERE host = ? AND id = ?",
                (slot, host, guest_id),
            )
            self.remove_guest(host, guest_id)

    def unpark(self, host: str, guest_id: str, slot: str) -> None:
        with self.connection:
            self.connection.execute(
                f"INSERT OR REPLACE INTO guests (host, id, {_SPEC_COLUMNS}, power, boots, disk)"
                f" SELECT host, id, {_SPEC_COLUMNS}, power, boots, disk FROM kept"
                " WHERE host = ? AND id = ? AND slot = ?",
                (host, guest_id, slot),
            )
            self.remove_slot(host, guest_id, slot)

    def hand_over(self, source: str, guest_id: str, destination: str, slot: str) -> bool:
        """Replace the destination's slot by the source's guest. Return False if the guest or the slot is missing."""
        with self.connection:
            self.connection.execute(
                f"INSERT OR IGNORE INTO guests (host, id, {_SPEC_COLUMNS}, power, boots, disk)"
                " SELECT k.host, k.id, k.name, k.vcpus, k.ram_mb, k.disk_gb, k.spec, k.volumes, g.created_at, g.power,"
                " g.boots, g.disk FROM guests g JOIN kept k ON k.id = g.id AND k.host = ?3 AND k.slot = ?4"
                " WHERE g.host = ?1 AND g.id = ?2",
                (source, guest_id, destination, slot),
            )
            if self.connection.changes() != 1:
                return False
            self.remove_guest(source, guest_id)
            self.remove_slot(destination, guest_id, slot)
        return True


def _spec_values(guest: Guest) -> tuple[object, ...]:
    flavor = guest.flavor
    spec, volumes = messages.encode(guest), _volume_ids(guest)
    return guest.name, flavor.vcpus, flavor.ram_mb, flavor.disk_gb, spec, volumes, clock.now()


def _volume_ids(guest: Guest) -> str:
    return " ".join(disk.volume_id for disk in guest.disks)


def _placeholders(number: int) -> str:
    return ", ".join("?" * number)


def _state(row: Any) -> GuestState:
    guest_id, name, power, vcpus, ram_mb, disk_gb, created_at, boots, disk, volumes, *slot = row
    return GuestState(
        id=guest_id,
        name=name,
        power=power,
        vcpus=vcpus,
        ram_mb=ram_mb,
        disk_gb=disk_gb,
        created_at=created_at,
        boots=boots,
        disk=disk,
        slot=slot[0] if slot else "",
        volumes=volumes.split(),
    )
