"""Rules for failures and latencies of simulated hosts, in `sim.db`, so that any process can add them at any time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import msgspec

from kilonova.hosts.drivers.sim.store import SimStore

Kind = Literal["fail", "latency"]
Mode = Literal["error", "unreachable", "hang"]
Step = Literal[
    "spawn",
    "destroy",
    "power_on",
    "power_off",
    "reboot",
    "pause",
    "unpause",
    "suspend",
    "resume",
    "rescue",
    "unrescue",
    "set_password",
    "crash_dump",
    "attach_nic",
    "detach_nic",
    "set_metadata",
    "park",
    "unpark",
    "discard",
    "receive",
    "offer",
    "expect",
    "migrate_live",
    "stop_migration",
    "hurry_migration",
    "snapshot",
    "attach_disk",
    "detach_disk",
    "swap_disk",
    "grow_disk",
    "set_shares",
    "look_connector",
    "look_migration",
    "look_console",
    "look_display",
    "look_diagnostics",
    "guests",
    "describe",
    "heartbeat",
]

MODES: tuple[str, ...] = get_args(Mode)
STEPS: tuple[str, ...] = get_args(Step)
ANY = "*"


class Rule(msgspec.Struct, frozen=True):
    """`host` is a name or a shell pattern; `step` is one of STEPS or `*`; without `times` the rule holds until cleared.

    `chance` is the probability that the rule applies; None means always.
    """

    id: int
    kind: Kind
    host: str
    step: str
    mode: Mode | None
    message: str | None
    times: int | None
    seconds: float | None
    fired: int
    chance: float | None

    @property
    def spent(self) -> bool:
        return self.times is not None and self.fired >= self.times

    def matches(self, host: str, step: str) -> bool:
        return self.step in (step, ANY) and fnmatchcase(host, self.host)

    def applies_now(self) -> bool:
        return self.chance is None or random.random() < self.chance


class Rules:
    def __init__(self, store: SimStore) -> None:
        self._connection = store.connection
        self._version: object = None
        self._rules: list[Rule] = []

    def add_failure(
        self, host: str, step: str, mode: str, times: int | None, message: str | None, chance: float | None = None
    ) -> int:
        self._connection.execute(
            "INSERT INTO rules (kind, host, step, mode, times, message, chance) VALUES ('fail', ?, ?, ?, ?, ?, ?)",
            (host, step, mode, times, message, chance),
        )
        self._invalidate()
        return self._connection.last_insert_rowid()

    def set_latency(self, host: str, step: str, seconds: float, chance: float | None = None) -> None:
        """Set a latency, replacing the rule for the same host pattern and step.

        The newest matching rule that applies wins, so a rule of 0 seconds exempts a host.
        """
        with self._connection:
            self._connection.execute("DELETE FROM rules WHERE kind = 'latency' AND host = ? AND step = ?", (host, step))
            self._connection.execute(
                "INSERT INTO rules (kind, host, step, seconds, chance) VALUES ('latency', ?, ?, ?, ?)",
                (host, step, seconds, chance),
            )
        self._invalidate()

    def clear(self, host: str | None = None, step: str | None = None) -> int:
        """Delete all rules, or those with exactly this host pattern and step. Return their number."""
        self._connection.execute(
            "DELETE FROM rules WHERE host = coalesce(?, host) AND step = coalesce(?, step)", (host, step)
        )
        self._invalidate()
        return self._connection.changes()

    def all(self) -> list[Rule]:
        # The data version changes with every commit of another connection. Reading it is cheap.
        version = self._connection.pragma("data_version")
        if version != self._version:
            self._rules = self._load()
            self._version = version
        return self._rules

    def latency(self, host: str, step: str) -> float | None:
        for rule in reversed(self.all()):
            if rule.kind == "latency" and rule.matches(host, step) and rule.applies_now():
                return rule.seconds
        return None

    def take_failure(self, host: str, step: str) -> Rule | None:
        """Return the oldest failure that applies, and count it as fired."""
        for rule in self.all():
            is_due = rule.kind == "fail" and not rule.spent and rule.matches(host, step) and rule.applies_now()
            if is_due and self._fire(rule):
                return rule
        return None

    def exists(self, rule: Rule) -> bool:
        return any(other.id == rule.id for other in self.all())

    def unreachable(self, hosts: Iterable[str]) -> list[str]:
        """Return which of the hosts are cut off until a rule is cleared. They send no heartbeats."""
        cuts = [
            rule for rule in self.all() if rule.mode == "unreachable" and rule.times is None and rule.chance is None
        ]
        return [host for host in hosts if any(rule.matches(host, "heartbeat") for rule in cuts)]

    def _fire(self, rule: Rule) -> bool:
        self._connection.execute(
            "UPDATE rules SET fired = fired + 1 WHERE id = ? AND (times IS NULL OR fired < times)", (rule.id,)
        )
        self._invalidate()
        return self._connection.changes() == 1

    def _invalidate(self) -> None:
        # The connection's own commits do not change its data version.
        self._version = None

    def _load(self) -> list[Rule]:
        rows: Any = self._connection.execute(
            "SELECT id, kind, host, step, mode, message, times, seconds, fired, chance FROM rules ORDER BY id"
        )
        return [Rule(*row) for row in rows]
