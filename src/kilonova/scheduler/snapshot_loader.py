"""Loads the snapshot from the database: changes often, everything rarely.

Plans are only proposals, so the snapshot may lag. The reload corrects what the change sequence has missed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from kilonova import clock
from kilonova.hosts.heartbeat import DOWN_SECONDS
from kilonova.placement.changes import LAST_CHANGE
from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.placement.reshape_plan import InventoryAmounts
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.host_load import OPERATIONS, SERVERS, count_operations, count_servers
from kilonova.scheduler.hypervisor_columns import HypervisorKind
from kilonova.scheduler.provider_trees import ProviderState, ProviderVersion
from kilonova.scheduler.snapshot import Hosts, HostState
from kilonova.store import Database, Row

PAGE_SIZE = 250
# How many sets of names or aggregates are shared by providers that have the same.
MAX_SETS = 10_000


class ChangeCursor:
    """The position in the change sequence up to which it has been read.

    With concurrent transactions a number may become visible after a higher one. So from time to time a read starts
    again at the number that was the highest `overlap` seconds ago. A single writer commits in order, without overlap.
    """

    def __init__(self, overlap: float) -> None:
        self._overlap = overlap
        self._highest = -1
        self._settled = -1
        self._overlapping: deque[tuple[float, int]] = deque()
        self._overlap_due = 0.0

    @property
    def started(self) -> bool:
        return self._highest >= 0

    def start(self, highest: int) -> None:
        """Begin at the highest number at the start of a full load."""
        if not self.started:
            self._highest = highest
            self._settled = highest - PAGE_SIZE

    def advance(self, highest: int) -> None:
        self._highest = max(self._highest, highest)

    def since(self, now: float) -> int:
        """The number after which the next read starts."""
        if not self._overlap or now < self._overlap_due:
            return self._highest
        since = self._settled
        self._overlapping.append((now, self._highest))
        while self._overlapping[0][0] <= now - self._overlap:
            self._settled = self._overlapping.popleft()[1]
        self._overlap_due = now + self._overlap / 4
        return since


class SnapshotLoader:
    def __init__(
        self,
        db: Database,
        config: SchedulerConfig,
        down_seconds: float = DOWN_SECONDS,
        counts: frozenset[str] = frozenset(),
    ) -> None:
        self._db = db
        self._config = config
        self._down_seconds = down_seconds
        self._counts = counts
        self.hosts = Hosts(config.default_zone, config)
        self._cursor = ChangeCursor(0.0 if db.dialect == "sqlite" else config.change_overlap_seconds)
        self._other_providers: dict[int, int] = {}  # `change` of providers that are not part of the snapshot
        self._stale: set[int] = set()
        self._name_sets: dict[str, frozenset[str]] = {}
        self._aggregate_sets: dict[str, frozenset[int]] = {}
        self._read_number = 0
        self._liveness_due = 0.0

    async def reload(self) -> None:
        """Read every host, page by page, so that the event loop can run other tasks in between."""
        highest = int(await self._db.fetch_value(f"SELECT {LAST_CHANGE}"))
        missing = self.hosts.provider_ids()
        self._other_providers.clear()
        for page in (_SHARING, _PAGE):  # sharing providers first, so that each host is assigned its provider set once
            last = 0
            while ids := [row["id"] for row in await self._db.fetch(page, last, PAGE_SIZE)]:
                missing -= await self._read(ids)
                last = ids[-1]
                await asyncio.sleep(0)
        for provider_id in missing:
            self.hosts.drop(provider_id)
        await self._refresh_liveness(clock.now())
        self._cursor.start(highest)

    async def refresh(self) -> None:
        """Read changes."""
        if not self._cursor.started:
            await self.reload()
        rows = await self._db.fetch(_CHANGED, self._cursor.since(time.monotonic()))
        usage_changed, changed = self._classify(rows)
        changed += self._stale
        self._stale.clear()
        if usage_changed:
            await self._read_used(usage_changed)
        for start in range(0, len(changed), PAGE_SIZE):
            await self._read(changed[start : start + PAGE_SIZE])
        self._cursor.advance(max((row["change"] for row in rows), default=0))
        if clock.now() >= self._liveness_due:
            await self._refresh_liveness(clock.now())

    def mark_stale(self, uuids: Iterable[str]) -> None:
        """Read all providers of these hosts at the next refresh, changed or not."""
        for uuid in uuids:
            self._stale |= self.hosts.provider_ids_for(uuid)

    def _classify(self, rows: list[Row]) -> tuple[dict[int, ProviderVersion], list[int]]:
        """Divide changed providers into those with changed usage only and those to be read completely."""
        usage_changed: dict[int, ProviderVersion] = {}
        changed: list[int] = []
        for row in rows:
            provider_id, change = row["id"], row["change"]
            known = self.hosts.version(provider_id)
            if known is None:
                if self._other_providers.get(provider_id) != change:
                    changed.append(provider_id)
            elif known.change < change:
                if known.facts == row["facts"]:
                    usage_changed[provider_id] = ProviderVersion(change, row["facts"], row["generation"])
                else:
                    changed.append(provider_id)
        return usage_changed, changed

    async def _refresh_liveness(self, now: float) -> None:
        """Read which services are down, and how many operations run."""
        self._liveness_due = now + self._config.liveness_seconds
        rows = await self._db.fetch(_DOWN_SERVICES, now - self._down_seconds)
        self.hosts.set_down_services([row["id"] for row in rows])
        if OPERATIONS in self._counts:
            self.hosts.loads.operations = await count_operations(self._db)

    # `change` is always read first, so the rest can only be newer than it says.

    async def _read_used(self, versions: dict[int, ProviderVersion]) -> None:
        used = await self._used(list(versions))
        for provider_id, version in versions.items():
            self.hosts.set_used(provider_id, used.get(provider_id, {}), version)
        if SERVERS in self._counts:
            await self._count_servers(self.hosts.host_names(versions))

    async def _read(self, ids: list[int]) -> set[int]:
        """Read providers and the complete trees of their hosts; return the ids of all that exist."""
        self._read_number += 1
        read_number = self._read_number
        rows = {row["id"]: row for row in await self._db.fetch(_HOSTS, ids)}
        removed = set(ids) - rows.keys()
        await self._add_ancestors(rows)
        hosts = {provider_id: row for provider_id, row in rows.items() if row["host"] is not None}
        below = await self._descendants(hosts)
        states = await self._states(rows | {row["id"]: row for children in below.values() for row in children})
        names = [row["host"] for row in hosts.values()]
        aggregates = await self._aggregates(names, read_number)
        for provider_id, row in hosts.items():
            own = states[provider_id]
            self.hosts.put(
                HostState(
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
                    version=own.version,
                    aggregates=aggregates.get(row["host"], frozenset()),
                    hypervisor_kind=HypervisorKind(row["hypervisor_type"], row["hypervisor_version"], row["cpu_info"]),
                    address=row["host_ip"],
                    provider_aggregates=own.aggregates,
                    children=tuple(states[child["id"]] for child in below.get(provider_id, ())),
                    read_number=read_number,
                )
            )
        inside = hosts.keys() | {row["id"] for children in below.values() for row in children}
        for provider_id in rows.keys() - inside:
            self._put_other(states[provider_id], read_number)
        for provider_id in removed:
            self.hosts.drop(provider_id)
        if SERVERS in self._counts:
            await self._count_servers(names)
        return set(states)

    def _put_other(self, state: ProviderState, read_number: int) -> None:
        """Add a provider that is not part of a host if it shares; else ignore it."""
        if SHARING_TRAIT in state.traits:
            self.hosts.put_sharing_provider(state, read_number)
        else:
            self.hosts.drop(state.provider_id)
            self._other_providers[state.provider_id] = state.version.change

    async def _add_ancestors(self, rows: dict[int, Row]) -> None:
        """Add the ancestors of the providers that are not hosts themselves."""
        while True:
            parents = {row["parent_id"] for row in rows.values() if row["host"] is None} - rows.keys() - {None}
            found = await self._db.fetch(_HOSTS, sorted(parents)) if parents else []
            if not found:
                return
            rows |= {row["id"]: row for row in found}

    async def _descendants(self, hosts: dict[int, Row]) -> dict[int, list[Row]]:
        """All providers below each host."""
        found: dict[int, list[Row]] = {}
        above = {provider_id: provider_id for provider_id in hosts}
        level = list(hosts)
        while level:
            rows = await self._db.fetch(_CHILDREN, level)
            for row in rows:
                host = above[row["id"]] = above[row["parent_id"]]
                row["root_uuid"] = hosts[host]["uuid"]  # not the provider that an operator may have put above the host
                found.setdefault(host, []).append(row)
            level = [row["id"] for row in rows]
        return found

    async def _states(self, rows: dict[int, Row]) -> dict[int, ProviderState]:
        ids = list(rows)
        inventories = await self._inventories(ids)
        used = await self._used(ids)
        traits = await self._sets(_TRAITS, ids)
        aggregates = await self._sets(_PROVIDER_AGGREGATES, ids)
        return {
            provider_id: ProviderState(
                provider_id,
                row["uuid"],
                row["parent_uuid"],
                row["root_uuid"],
                inventories.get(provider_id, {}),
                used.get(provider_id, {}),
                traits.get(provider_id, frozenset()),
                aggregates.get(provider_id, frozenset()),
                ProviderVersion(row["change"], row["facts"], row["generation"]),
            )
            for provider_id, row in rows.items()
        }

    async def _inventories(self, ids: list[int]) -> dict[int, dict[str, InventoryAmounts]]:
        found: dict[int, dict[str, InventoryAmounts]] = {}
        for row in await self._db.fetch(_INVENTORIES, ids):
            provider_id, name, *amounts = row.values()
            found.setdefault(provider_id, {})[name] = InventoryAmounts(*amounts)
        return found

    async def _used(self, ids: list[int]) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = {}
        for row in await self._db.fetch(_USED, ids):
            found.setdefault(row["provider_id"], {})[row["resource_class"]] = row["used"]
        return found

    async def _sets(self, sql: str, ids: list[int]) -> dict[int, frozenset[str]]:
        """Names by provider. Equal sets are shared, because most hosts have the same traits and aggregates."""
        found: dict[int, frozenset[str]] = {}
        for row in await self._db.fetch(sql, ids):
            text = row["names"]
            names = self._name_sets.get(text)
            if names is None:
                if len(self._name_sets) >= MAX_SETS:
                    self._name_sets.clear()
                names = self._name_sets[text] = frozenset(text.split(","))
            found[row["provider_id"]] = names
        return found

    async def _aggregates(self, hosts: list[str], read_number: int) -> dict[str, frozenset[int]]:
        """The aggregates of these hosts. Also stores the aggregates' metadata in the snapshot."""
        found: dict[str, frozenset[int]] = {}
        for row in await self._db.fetch(_AGGREGATES, hosts):
            text = row["aggregates"]
            aggregates = self._aggregate_sets.get(text)
            if aggregates is None:
                if len(self._aggregate_sets) >= MAX_SETS:
                    self._aggregate_sets.clear()
                aggregates = self._aggregate_sets[text] = frozenset(map(int, text.split(",")))
            found[row["host"]] = aggregates
        metadata: dict[int, dict[str, str]] = {number: {} for number in frozenset().union(*found.values())}
        if metadata:
            for row in await self._db.fetch(_METADATA, sorted(metadata)):
                metadata[row["aggregate_id"]][row["key"]] = row["value"]
            self.hosts.aggregates.set_metadata(read_number, metadata)
        return found

    def _zone(self, aggregates: frozenset[int]) -> str:
        for number in sorted(aggregates):
            zone = self.hosts.aggregates.metadata(number).get("availability_zone")
            if zone is not None:
                return zone
        return self._config.default_zone

    async def _count_servers(self, hosts: list[str]) -> None:
        self.hosts.set_server_counts(await count_servers(self._db, hosts), hosts)


_PAGE = """
SELECT p.id FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid
WHERE p.id > $1 ORDER BY p.id LIMIT $2
"""
_SHARING = f"""
SELECT provider_id AS id FROM provider_traits
WHERE trait = '{SHARING_TRAIT}' AND provider_id > $1 ORDER BY provider_id LIMIT $2
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
_DOWN_SERVICES = "SELECT id FROM services WHERE program = 'nova-compute' AND last_seen_at < $1"
