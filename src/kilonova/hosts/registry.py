"""Registers the hosts and services of a process, in one transaction. Writes only changes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from kilonova import clock, ids
from kilonova.hosts.messages import VERSION, HostFacts
from kilonova.hosts.service import Service
from kilonova.placement import HostProviders, mark_hosts_changed, mirror, sync_providers
from kilonova.placement.host_providers import validation_error
from kilonova.store import Conflict, Database, Invalid, Reader, Row, Transaction

log = logging.getLogger(__name__)

COMPUTE = "nova-compute"
CONDUCTOR = "nova-conductor"
SCHEDULER = "nova-scheduler"

# Agents compute their host's boot time from its uptime, which is inexact.
_BOOT_TOLERANCE_SECONDS = 10.0
# Bounds of facts, which both databases can store.
_MAX_TEXT_LENGTH = 255
_MAX_INTEGER = 2**31 - 1
_MAX_TIME = 1e11
_MAX_CPU_INFO_BYTES = 65535
# Lock for creating and deleting services and hypervisors.
LOCK = "registry of hosts"
# Channel for registrations of hosts that need network plans.
NETWORKED = "networked hosts"


class _ServiceRow(NamedTuple):
    host: str
    program: str
    version: int


async def register(db: Database, hosts: Sequence[HostFacts], *, process_host: str | None = None) -> list[Service]:
    """Create or update the services and hypervisors of these hosts, and their providers in placement.

    `process_host` names the host of a worker process, whose conductor and scheduler are registered as well.
    Returns the services that this process reports as up. A host with invalid facts is skipped.
    """
    hosts = [facts for facts in hosts if _is_valid(facts)]
    try:
        return await _register(db, hosts, process_host)
    except (Conflict, Invalid):
        # The database refuses the facts of some host. Other hosts must not miss their report for it.
        services = await _register(db, [], process_host)
    for facts in hosts:
        try:
            services += await _register(db, [facts], None)
        except (Conflict, Invalid) as error:
            log.error("host %s is not registered: %s", facts.host, error)
    return services


async def _register(db: Database, hosts: Sequence[HostFacts], process_host: str | None) -> list[Service]:
    async with db.transaction() as tx:
        await tx.lock(LOCK)
        hosts = await _without_taken_names(tx, hosts)
        wanted = [_ServiceRow(facts.host, COMPUTE, facts.agent_version) for facts in hosts]
        if process_host is not None:
            wanted += [_ServiceRow(process_host, program, VERSION) for program in (CONDUCTOR, SCHEDULER)]
        services = await _register_services(tx, wanted)
        service_ids = {service.host: service.id for service in services if service.program == COMPUTE}
        uuids = await _register_hypervisors(tx, hosts, service_ids)
        await sync_providers(tx, [_provider(uuids[facts.host], facts) for facts in hosts])
        await mirror.mirror_registered_hosts(tx, [facts.host for facts in hosts])
        if any(facts.networked for facts in hosts):
            tx.notify(NETWORKED)
    return services


async def _without_taken_names(tx: Transaction, hosts: Sequence[HostFacts]) -> Sequence[HostFacts]:
    """Skip hosts with the hypervisor name of another host: requests for the other one would reach them."""
    names = [facts.hypervisor_hostname for facts in hosts]
    sql = "SELECT host, hypervisor_hostname FROM hypervisors WHERE hypervisor_hostname = ANY($1)"
    owners: dict[str, set[str]] = {}
    for row in await tx.fetch(sql, names):
        owners.setdefault(row["hypervisor_hostname"], set()).add(row["host"])
    kept = []
    for facts in hosts:
        found = owners.setdefault(facts.hypervisor_hostname, {facts.host})
        if facts.host in found:
            kept.append(facts)
        else:
            name, other = facts.hypervisor_hostname, min(found)
            log.error("host %s is not registered: the hypervisor %s is that of host %s", facts.host, name, other)
    return kept


async def find_compute_service(reader: Reader, host: str) -> Service | None:
    sql = "SELECT * FROM services WHERE host = $1 AND program = $2"
    return Service.decode_optional(await reader.fetch_one(sql, host, COMPUTE))


async def _register_services(tx: Transaction, wanted: Sequence[_ServiceRow]) -> list[Service]:
    names = list({service.host for service in wanted})
    known = await _known_services(tx, names)
    missing, changed = [], []
    for service in wanted:
        registered = known.get((service.host, service.program))
        if registered is None:
            missing.append((ids.new_id(), service.host, service.program, clock.now(), service.version))
        elif registered.version != service.version:
            changed.append((registered.id, service.version))
    if changed:
        await tx.execute_many("UPDATE services SET version = $2 WHERE id = $1", changed)
    if missing:
        await tx.execute_many(
            "INSERT INTO services (uuid, host, program, disabled, forced_down, last_seen_at, report_count,"
            " version, created_at) VALUES ($1, $2, $3, FALSE, FALSE, $4, 0, $5, $4)",
            missing,
        )
        known = await _known_services(tx, names)
    return [known[service.host, service.program] for service in wanted]


async def _known_services(tx: Transaction, hosts: list[str]) -> dict[tuple[str, str], Service]:
    rows = await tx.fetch("SELECT * FROM services WHERE host = ANY($1)", hosts)
    return {(service.host, service.program): service for service in Service.decode_all(rows)}


_FACTS = ("hypervisor_hostname", "hypervisor_type", "hypervisor_version", "host_ip", "cpu_info", "networked")


async def _register_hypervisors(
    tx: Transaction, hosts: Sequence[HostFacts], service_ids: dict[str, int]
) -> dict[str, str]:
    """Create or update the hypervisors. Return their uuids by host."""
    sql = f"SELECT uuid, host, service_id, booted_at, {', '.join(_FACTS)} FROM hypervisors WHERE host = ANY($1)"
    known = {row["host"]: row for row in await tx.fetch(sql, [facts.host for facts in hosts])}
    uuids = {host: str(row["uuid"]) for host, row in known.items()}
    new, changed, booted = [], [], []
    for facts in hosts:
        values = (service_ids[facts.host], *_columns(facts))
        row = known.get(facts.host)
        if row is None:
            new.append((facts, values))
        elif values != (row["service_id"], *(row[name] for name in _FACTS)):
            changed.append((facts.host, clock.now(), _booted_at(facts, row), *values))
        elif (booted_at := _booted_at(facts, row)) != row["booted_at"]:
            booted.append((facts.host, booted_at))
    if new:
        uuids |= await _create_hypervisors(tx, new)
    if changed:
        assignments = ", ".join(f"{name} = ${number}" for number, name in enumerate(_FACTS, start=5))
        await tx.execute_many(
            f"UPDATE hypervisors SET updated_at = $2, booted_at = $3, service_id = $4, {assignments} WHERE host = $1",
            changed,
        )
        await mark_hosts_changed(tx, [host for host, *_ in changed])
    if booted:
        await tx.execute_many("UPDATE hypervisors SET booted_at = $2 WHERE host = $1", booted)
    return uuids


async def _create_hypervisors(tx: Transaction, new: Sequence[tuple[HostFacts, tuple[object, ...]]]) -> dict[str, str]:
    """A hypervisor takes the uuid of an unused root provider of its name: created in advance, or by a predecessor."""
    names = [facts.hypervisor_hostname for facts, _ in new]
    unused = {row["name"]: row["uuid"] for row in await tx.fetch(_UNUSED_PROVIDERS, names)}
    uuids = {facts.host: unused.pop(facts.hypervisor_hostname, None) or ids.new_id() for facts, _ in new}
    now = clock.now()
    await tx.execute_many(
        f"INSERT INTO hypervisors (uuid, created_at, host, booted_at, service_id, {', '.join(_FACTS)})"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        [(uuids[facts.host], now, facts.host, facts.booted_at, *values) for facts, values in new],
    )
    return uuids


def _booted_at(facts: HostFacts, row: Row) -> float | None:
    """Return the stored boot time, unless the host reports another one."""
    reported, stored = facts.booted_at, row["booted_at"]
    if reported is None or (stored is not None and abs(reported - stored) <= _BOOT_TOLERANCE_SECONDS):
        return None if stored is None else float(stored)
    return reported


def _columns(facts: HostFacts) -> tuple[str, str, int, str, str, bool]:
    return (
        facts.hypervisor_hostname,
        facts.hypervisor_type,
        facts.hypervisor_version,
        facts.host_ip,
        orjson.dumps(facts.cpu_info, option=orjson.OPT_SORT_KEYS).decode(),
        facts.networked,
    )


def _is_valid(facts: HostFacts) -> bool:
    error = _facts_error(facts) or validation_error(_provider("", facts))
    if error is not None:
        log.error("host %s is not registered: %s", facts.host, error)
    return error is None


def _facts_error(facts: HostFacts) -> str | None:
    """Return why the facts cannot be stored. A host is not trusted to report sensible facts."""
    for name in ("host", "hypervisor_hostname", "hypervisor_type", "host_ip"):
        text: str = getattr(facts, name)
        if len(text) > _MAX_TEXT_LENGTH or not text.isprintable():
            return f"{name}: {text[:40]!r} is not printable text of at most {_MAX_TEXT_LENGTH} characters"
    for name in ("hypervisor_version", "agent_version"):
        number: int = getattr(facts, name)
        if not 0 <= number <= _MAX_INTEGER:
            return f"{name}: {number:.6g} is not between 0 and {_MAX_INTEGER}"
    if facts.booted_at is not None and not 0 <= facts.booted_at <= _MAX_TIME:
        return f"booted_at: {facts.booted_at} is not a time in epoch seconds"
    try:
        cpu_info = orjson.dumps(facts.cpu_info)
    except TypeError as error:
        return f"cpu_info: {error}"
    if len(cpu_info) > _MAX_CPU_INFO_BYTES or b"\\u0000" in cpu_info:
        return f"cpu_info: not a document without NUL of at most {_MAX_CPU_INFO_BYTES} bytes"
    return None


def _provider(uuid: str, facts: HostFacts) -> HostProviders:
    name = facts.hypervisor_hostname
    return HostProviders(uuid, name, facts.inventory, facts.traits, facts.nested, facts.sharing)


_UNUSED_PROVIDERS = """
SELECT p.name, p.uuid FROM resource_providers p LEFT JOIN hypervisors h ON h.uuid = p.uuid
WHERE p.name = ANY($1) AND p.parent_id IS NULL AND h.uuid IS NULL
"""
