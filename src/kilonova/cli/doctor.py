"""`kilonova doctor`: compares servers with allocations, ports, images, volumes, guests and operations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kilonova.cli import options, tables

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.doctor import Finding, ImageReader, PortReader, VolumeReader
    from kilonova.hosts.messages import GuestState
    from kilonova.store import Database


_AGENT_TIMEOUT_SECONDS = 5.0
T = TypeVar("T")


@click.command()
@options.combine(options.data, options.database, options.file)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array instead of a table.")
def doctor(file: Path | None, data: str | None, database: str | None, as_json: bool) -> None:
    """Compare servers with their allocations, ports, images, volumes, guests and operations.

    Reads only, so the cloud may be running or stopped. Exits with 1 if there are findings. To compare guests with
    --database, give --data too. Separate agents are included if the configuration has their NATS server. Services
    beside the cloud are read by their APIs; one that does not respond is left out.
    """
    config = options.load(file, data=data, database=database)
    # Guests in the default data directory do not belong to a database that is given without --data.
    with_guests = database is None or data is not None
    findings = asyncio.run(_examine(config, with_guests))
    if as_json:
        _print_json(findings)
    elif findings:
        _print_table(findings)
    else:
        click.echo("Everything agrees.")
    if findings:
        raise SystemExit(1)


async def _examine(config: Config, with_guests: bool) -> list[Finding]:
    from kilonova import clock, store
    from kilonova.doctor import examine
    from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore

    if not config.database and not (config.data_dir / "kilonova.db").is_file():
        raise options.Failure(f"--data: {config.data_dir} has no cloud (no file kilonova.db)")
    sim_file = config.data_dir / SIM_FILE_NAME
    try:
        db = await store.open_database(config.database_url)
    except (store.StoreError, ValueError, OSError) as error:
        raise options.Failure(f"--database: {error}") from None
    sim = SimStore(sim_file) if with_guests and sim_file.is_file() else None
    try:
        since = clock.now()  # guests may change while slow agents respond
        found = None if sim is None else sim.all_guests()
        unreachable: set[str] = set()
        if with_guests:
            more, unreachable = await _list_agent_guests(config, db, set() if sim is None else set(sim.hosts()))
            found = [*(found or []), *more] if found is not None or more else None
        return await examine(
            db,
            found,
            _unless_unavailable("Volumes", _volume_reader(config, db)),
            _unless_unavailable("Ports", _port_reader(config, db)),
            _unless_unavailable("Images", _image_reader(config, db)),
            unreachable_hosts=unreachable,
            since=since,
            down_seconds=config.hosts.down_seconds,
        )
    except store.StoreError as error:
        raise options.Failure(f"the database cannot be read: {error}") from None
    finally:
        if sim is not None:
            sim.close()
        await db.close()


async def _list_agent_guests(
    config: Config, db: Database, sim_hosts: set[str]
) -> tuple[list[tuple[str, GuestState]], set[str]]:
    """The guests on hosts with separate agents, and the hosts that do not respond."""
    rows = await db.fetch("SELECT host FROM hypervisors ORDER BY host")
    agent_hosts = [row["host"] for row in rows if row["host"] not in sim_hosts]
    if not agent_hosts or not config.messaging.url:
        return [], set(agent_hosts)
    from kilonova.hosts.nats import NatsTransport
    from kilonova.hosts.transport import HostCallError, list_all_guests

    transport = NatsTransport(config.messaging)
    running = asyncio.create_task(transport.run())
    try:
        responses = await list_all_guests(transport, agent_hosts, timeout=_AGENT_TIMEOUT_SECONDS)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    found: list[tuple[str, GuestState]] = []
    unreachable: set[str] = set()
    for host, guests in responses.items():
        if isinstance(guests, HostCallError):
            click.echo(f"Guests of {host} are not compared: {guests.message}", err=True)
            unreachable.add(host)
        else:
            found += [(host, guest) for guest in guests]
    return found, unreachable


def _volume_reader(config: Config, db: Database) -> VolumeReader:
    """A reader of volumes. An external one needs a token, of Keystone or of this cloud, which then must be running."""
    from kilonova.doctor.volumes import read_built_in, read_external

    if config.is_built_in("volume"):
        return partial(read_built_in, db)
    return partial(read_external, config)


def _port_reader(config: Config, db: Database) -> PortReader:
    from kilonova.doctor.ports import read_built_in, read_external

    return partial(read_built_in, db) if config.is_built_in("network") else partial(read_external, config)


def _image_reader(config: Config, db: Database) -> ImageReader:
    from kilonova.doctor.images import read_built_in, read_external

    return partial(read_built_in, db) if config.is_built_in("image") else partial(read_external, config)


def _unless_unavailable(what: str, read: Callable[[], Awaitable[T | None]]) -> Callable[[], Awaitable[T | None]]:
    """Read, or say why this part is not compared."""
    from kilonova.doctor import Unavailable

    async def read_or_skip() -> T | None:
        try:
            return await read()
        except Unavailable as error:
            click.echo(f"{what} are not compared: {error}", err=True)
            return None

    return read_or_skip


def _print_table(findings: Sequence[Finding]) -> None:
    from kilonova.doctor.remedies import REMEDIES

    console = tables.make_console()
    console.print("1 finding" if len(findings) == 1 else f"{len(findings)} findings")
    table = tables.make_table("WHAT", "ID", "DETAILS")
    for finding in findings:
        table.add_row(finding.kind, finding.subject, finding.detail)
    console.print(table)
    console.print("What to do:")
    for kind in dict.fromkeys(finding.kind for finding in findings):
        console.print(f"- {kind}: {REMEDIES[kind]}", soft_wrap=True)


def _print_json(findings: Sequence[Finding]) -> None:
    import msgspec

    shown = [{**msgspec.structs.asdict(finding), "remedy": finding.remedy} for finding in findings]
    click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))
