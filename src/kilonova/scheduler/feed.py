"""Keeps the snapshot near the database: often what changed since the last look, rarely all of it.

The snapshot only proposes, so it may be late. It must not be wrong for long, hence the reload.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from kilonova import clock
from kilonova.hosts.heartbeat import DOWN_TIME
from kilonova.placement.changes import HIGHEST
from kilonova.placement.facts import SHARES
from kilonova.placement.providers import Amounts
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.loads import OPERATIONS, SERVERS, count_operations, count_servers
from kilonova.scheduler.machines import Machine
from kilonova.scheduler.snapshot import HostFacts, Hosts
from kilonova.scheduler.trees import Marks, MemberFacts
from kilonova.store import Database, Row

PAGE = 250


class Tail:
    """How far the change sequence has been read.

    Where several transactions write at once, a number may become visible after a higher one. So every now and then
    the look goes back to what was the highest number some time ago; a single writer commits in order and needs none.
    """

    def __init__(self, overlap: float) -> None:
        self._overlap = overlap
        self._highest = -1
        self._settled = -1
        self._wide: deque[tuple[float, int]] = deque()
        self._wide_due = 0.0

    @property
    def started(self) -> bool:
        return self._highest >= 0

    def start(self, highest: int) -> None:
        """Everything was read after this number was the highest."""
        if not self.started:
            self._highest = highest
            self._settled = highest - PAGE

    def saw(self, highest: int) -> None:
        self._highest = max(self._highest, highest)

    def since(self, now: float) -> int:
        """Where the next look begins."""
        if not self._overlap or now < self._wide_due:
            return self._highest
        since = self._settled
        self._wide.append((now, self._highest))
        while self._wide[0][0] <= now - self._overlap:
            self._settled = self._wide.popleft()[1]
        self._wide_due = now + self._overlap / 4
        return since


class Feed:
    def __init__(
        self,
        db: Database,
        config: SchedulerConfig,
        down_time: float = DOWN_TIME,
        reads: frozenset[str] = frozenset(),
    ) -> None:
        self._db = db
        self._config = config
        self._down_time = down_time
        self._reads = reads
        self.hosts = Hosts(config.default_zone, config)
        self._tail = Tail(0.0 if db.dialect == "sqlite" else config.overlap)
        self._strangers: dict[int, int] = {}  # providers that are no hosts, and their change when that was found
        self._doubted: set[int] = set()
        self._name_sets: dict[str, frozenset[str]] = {}
        self._aggregate_sets: dict[str, frozenset[int]] = {}
        self._looks = 0
        self._liveness_due = 0.0

    async def reload(self) -> None:
        """Read every host, page by page, so that others get their turn in between."""
        highest = int(await self._db.fetch_value(f"SELECT {HIGHEST}"))
        before = self.hosts.providers()
        self._strangers.clear()
        for page in (_SHARING, _PAGE):  # whoever shares comes first, so that every host finds its circle at once
            last = 0
            while ids := [row["id"] for row in await self._db.fetch(page, last, PAGE)]:
                before -= await self._read(ids)
                last = ids[-1]
                await asyncio.sleep(0)
        for provider_id in before:
            self.hosts.drop(provider_id)
        await self._listen(clock.now())
        self._tail.start(highest)

    async def refresh(self) -> None:
        """Read what changed."""
        if not self._tail.started:
            await self.reload()
        rows = await self._db.fetch(_CHANGED, self._tail.since(time.monotonic()))
        used, facts = self._sort(rows)
        facts += self._doubted
        self._doubted.clear()
        if used:
            await self._read_used(used)
        for start in range(0, len(facts), PAGE):
            await self._read(facts[start : start + PAGE])
        self._tail.saw(max((row["change"] for row in rows), default=0))
        if clock.now() >= self._liveness_due:
            await self._listen(clock.now())

    def doubt(self, uuids: Iterable[str]) -> None:
        """Have these hosts, and all that their room depends on, read anew, whether or not they seem to have changed."""
        for uuid in uuids:
            self._doubted |= self.hosts.concerning(uuid)

    def _sort(self, rows: list[Row]) -> tuple[dict[int, Marks], list[int]]:
        """Of the providers that changed, those of which only the use did, and those to be read wholly."""
        used: dict[int, Marks] = {}
        facts: list[int] = []
        for row in rows:
            provider_id, change = row["id"], row["change"]
            known = self.hosts.marks(provider_id)
            if known is None:
                if self._strangers.get(provider_id) != change:
                    facts.append(provider_id)
            elif known.change < change:
                if known.facts == row["facts"]:
                    used[provider_id] = Marks(change, row["facts"], row["generation"])
                else:
                    facts.append(provider_id)
        return used, facts

    async def _listen(self, now: float) -> None:
        """Ask which services are silent: few, if all is well."""
        self._liveness_due = now + self._config.liveness_every
        rows = await self._db.fetch(_SILENT, now - self._down_time)
        self.hosts.set_silent([row["id"] for row in rows])
        if OPERATIONS in self._reads:
            self.hosts.loads.operations = await count_operations(self._db)

    # `change` is always read first: what is read after it is as new or newer, never older.

    async def _read_used(self, marks: dict[int, Marks]) -> None:
        used = await self._used(list(marks))
        for provider_id, mark in marks.items():
            self.hosts.use(provider_id, used.get(provider_id, {}), mark)
        if SERVERS in self._reads:
            await self._count_servers(self.hosts.names_of(marks))

    async def _read(self, ids: list[int]) -> set[int]:
        """Read providers with the whole trees of the hosts that they belong to; everyone that was there."""
        self._looks += 1
        look = self._looks
        rows = {row["id"]: row for row in await self._db.fetch(_HOSTS, ids)}
        gone = set(ids) - rows.keys()
        await self._climb(rows)
        hosts = {provider_id: row for provider_id, row in rows.items() if row["host"] is not None}
        below = await self._below(hosts)
        facts = await self._facts(rows | {row["id"]: row for children in below.values() for row in children})
        names = [row["host"] for row in hosts.values()]
        aggregates = await self._aggregates(names, look)
        for provider_id, row in hosts.items():
            own = facts[provider_id]
            self.hosts.put(
                HostFacts(
                    provider_id=provider_id,
                    uuid=row["uuid"],
                    service_id=row["service_id"],
                    host=row["host"],
                    hypervisor_hostname=row["hypervisor_hostname"],
                    zone=self._zone(aggregates.get(row["host"], frozenset())),
                    disabled=row["disabled"],
                    disabled_reason=row["disabled_reason"],
                    forced_down=row["forced_down"],
                    inventory=own.inventory,
                    used=own.used,
                    traits=own.traits,
                    marks=own.marks,
                    aggregates=aggregates.get(row["host"], frozenset()),
                    machine=Machine(row["hypervisor_type"], row["hypervisor_version"], row["cpu_info"]),
                    address=row["host_ip"],
                    provider_aggregates=own.aggregates,
                    children=tuple(facts[child["id"]] for child in below.get(provider_id, ())),
                    look=look,
                )
            )
        inside = hosts.keys() | {row["id"] for children in below.values() for row in children}
        for provider_id in rows.keys() - inside:
            self._put_other(facts[provider_id], look)
        for provider_id in gone:
            self.hosts.drop(provider_id)
        if SERVERS in self._reads:
            await self._count_servers(names)
        return set(facts)

    def _put_other(self, facts: MemberFacts, look: int) -> None:
        """A provider that is no part of a host: it may share with hosts, or it is none of our business."""
        if SHARES in facts.traits:
            self.hosts.put_sharing(facts, look)
        else:
            self.hosts.drop(facts.provider_id)
            self._strangers[facts.provider_id] = facts.marks.change

    async def _climb(self, rows: dict[int, Row]) -> None:
        """Add the hosts above those that are none themselves."""
        while True:
            parents = {row["parent_id"] for row in rows.values() if row["host"] is None} - rows.keys() - {None}
            found = await self._db.fetch(_HOSTS, sorted(parents)) if parents else []
            if not found:
                return
            rows |= {row["id"]: row for row in found}

    async def _below(self, hosts: dict[int, Row]) -> dict[int, list[Row]]:
        """All providers below each of the hosts."""
        found: dict[int, list[Row]] = {}
        above = {provider_id: provider_id for provider_id in hosts}
        level = list(hosts)
        while level:
            rows = await self._db.fetch(_CHILDREN, level)
            for row in rows:
                host = above[row["id"]] = above[row["parent_id"]]
                row["root_uuid"] = hosts[host]["uuid"]  # an operator may have put hosts below something else
                found.setdefault(host, []).append(row)
            level = [row["id"] for row in rows]
        return found

    async def _facts(self, rows: dict[int, Row]) -> dict[int, MemberFacts]:
        ids = list(rows)
        inventories = await self._inventories(ids)
        used = await self._used(ids)
        traits = await self._sets(_TRAITS, ids)
        aggregates = await self._sets(_PROVIDER_AGGREGATES, ids)
        return {
            provider_id: MemberFacts(
                provider_id,
                row["uuid"],
                row["parent_uuid"],
                row["root_uuid"],
                inventories.get(provider_id, {}),
                used.get(provider_id, {}),
                traits.get(provider_id, frozenset()),
                aggregates.get(provider_id, frozenset()),
                Marks(row["change"], row["facts"], row["generation"]),
            )
            for provider_id, row in rows.items()
        }

    async def _inventories(self, ids: list[int]) -> dict[int, dict[str, Amounts]]:
        found: dict[int, dict[str, Amounts]] = {}
        for row in await self._db.fetch(_INVENTORIES, ids):
            provider_id, name, *amounts = row.values()
            found.setdefault(provider_id, {})[name] = Amounts(*amounts)
        return found

    async def _used(self, ids: list[int]) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = {}
        for row in await self._db.fetch(_USED, ids):
            found.setdefault(row["provider_id"], {})[row["resource_class"]] = row["used"]
        return found

    async def _sets(self, sql: str, ids: list[int]) -> dict[int, frozenset[str]]:
        """Hosts of a kind have the same traits and aggregates: one set for all of them."""
        found: dict[int, frozenset[str]] = {}
        for row in await self._db.fetch(sql, ids):
            text = row["names"]
            names = self._name_sets.get(text)
            if names is None:
                names = self._name_sets[text] = frozenset(text.split(","))
            found[row["provider_id"]] = names
        return found

    async def _aggregates(self, hosts: list[str], look: int) -> dict[str, frozenset[int]]:
        """The aggregates of these hosts; what is said of the aggregates goes into the snapshot at once."""
        found: dict[str, frozenset[int]] = {}
        for row in await self._db.fetch(_AGGREGATES, hosts):
            text = row["aggregates"]
            numbers = self._aggregate_sets.get(text)
            if numbers is None:
                numbers = self._aggregate_sets[text] = frozenset(map(int, text.split(",")))
            found[row["host"]] = numbers
        metadata: dict[int, dict[str, str]] = {number: {} for number in frozenset().union(*found.values())}
        if metadata:
            for row in await self._db.fetch(_METADATA, sorted(metadata)):
                metadata[row["aggregate_id"]][row["key"]] = row["value"]
            self.hosts.aggregates.describe(look, metadata)
        return found

    def _zone(self, aggregates: frozenset[int]) -> str:
        for number in sorted(aggregates):
            zone = self.hosts.aggregates.metadata(number).get("availability_zone")
            if zone is not None:
                return zone
        return self._config.default_zone

    async def _count_servers(self, hosts: list[str]) -> None:
        self.hosts.set_servers(await count_servers(self._db, hosts), hosts)


_PAGE = """
SELECT p.id FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid
WHERE p.id > $1 ORDER BY p.id LIMIT $2
"""
_SHARING = f"""
SELECT provider_id AS id FROM provider_traits
WHERE trait = '{SHARES}' AND provider_id > $1 ORDER BY provider_id LIMIT $2
"""
_CHANGED = """
SELECT id, change, facts, generation FROM resource_providers WHERE change > $1
UNION ALL SELECT id, change, change, 0 FROM departed_providers WHERE change > $1
"""
_HOSTS = """
SELECT p.id, p.uuid, p.change, p.facts, p.generation, p.parent_id, parent.uuid AS parent_uuid,
       root.uuid AS root_uuid, h.host, h.hypervisor_hostname,
       h.hypervisor_type, h.hypervisor_version, h.host_ip, h.cpu_info,
       s.id AS service_id, s.disabled, s.disabled_reason, s.forced_down
FROM resource_providers p
LEFT JOIN resource_providers parent ON parent.id = p.parent_id
LEFT JOIN resource_providers root ON root.id = p.root_id
LEFT JOIN hypervisors h ON h.uuid = p.uuid
LEFT JOIN services s ON s.id = h.service_id
WHERE p.id = ANY($1)
"""
_CHILDREN = """
SELECT p.id, p.uuid, p.change, p.facts, p.generation, p.parent_id, parent.uuid AS parent_uuid
FROM resource_providers p
JOIN resource_providers parent ON parent.id = p.parent_id
LEFT JOIN hypervisors h ON h.uuid = p.uuid
WHERE p.parent_id = ANY($1) AND h.uuid IS NULL ORDER BY p.id
"""
_INVENTORIES = """
SELECT provider_id, resource_class, total, reserved, min_unit, max_unit, step_size, allocation_ratio
FROM inventories WHERE provider_id = ANY($1)
"""
_USED = """
SELECT provider_id, resource_class, CAST(SUM(used) AS BIGINT) AS used
FROM allocations WHERE provider_id = ANY($1) GROUP BY provider_id, resource_class
"""
_TRAITS = """
SELECT provider_id, string_agg(trait, ',' ORDER BY trait) AS names
FROM provider_traits WHERE provider_id = ANY($1) GROUP BY provider_id
"""
_PROVIDER_AGGREGATES = """
SELECT provider_id, string_agg(aggregate_uuid, ',' ORDER BY aggregate_uuid) AS names
FROM provider_aggregates WHERE provider_id = ANY($1) GROUP BY provider_id
"""
_AGGREGATES = """
SELECT host, string_agg(CAST(aggregate_id AS TEXT), ',' ORDER BY aggregate_id) AS aggregates
FROM aggregate_hosts WHERE host = ANY($1) GROUP BY host
"""
_METADATA = "SELECT aggregate_id, key, value FROM aggregate_metadata WHERE aggregate_id = ANY($1)"
_SILENT = "SELECT id FROM services WHERE program = 'nova-compute' AND last_seen_at < $1"
