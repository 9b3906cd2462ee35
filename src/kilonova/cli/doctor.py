"""`kilonova doctor`: does everything agree that must agree?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kilonova.cli import bars, options

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.doctor import Finding, Look
    from kilonova.hosts.messages import GuestState
    from kilonova.store import Database


_ANSWER_SECONDS = 5.0


@click.command()
@options.together(options.data, options.database, options.file)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array instead of a table.")
def doctor(file: Path | None, data: str | None, database: str | None, as_json: bool) -> None:
    """Compare servers with their allocations, ports, volumes, guests and operations.

    Only reads, so it may run beside a cloud at work as well as on one that stands still. Exits with 1 if there are
    findings. Guests are compared where the data directory is known: with --database give --data too. Agents that are
    processes of their own are asked where the configuration names their NATS server.
    """
    config = options.load(file, data=data, database=database)
    # A database named without its directory: the guests of whatever lies in the default one are not its own.
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
    from kilonova.doctor import Unasked, examine
    from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore

    if not config.database and not (config.data_dir / "kilonova.db").is_file():
        raise options.Failure(f"--data: {config.data_dir} holds no cloud (kilonova.db is not there)")
    guests = config.data_dir / FILE_NAME
    try:
        db = await store.open_database(config.database_url)
    except (store.StoreError, ValueError, OSError) as error:
        raise options.Failure(f"--database: {error}") from None
    sim = SimStore(guests) if with_guests and guests.is_file() else None
    try:
        since = clock.now()  # agents may take their time, in which what they said becomes old
        found = None if sim is None else sim.all_guests()
        unasked: set[str] = set()
        if with_guests:
            more, unasked = await _ask_agents(config, db, set() if sim is None else set(sim.hosts()))
            found = [*(found or []), *more] if found is not None or more else None
        compare = partial(examine, db, found, unasked=unasked, since=since, down_seconds=config.hosts.down_seconds)
        try:
            return await compare(look=_volumes(config, db))
        except Unasked as error:
            click.echo(f"Volumes are not compared: {error}", err=True)
            return await compare()
    except store.StoreError as error:
        raise options.Failure(f"the database cannot be read: {error}") from None
    finally:
        if sim is not None:
            sim.close()
        await db.close()


async def _ask_agents(config: Config, db: Database, own: set[str]) -> tuple[list[tuple[str, GuestState]], set[str]]:
    """The guests on hosts that have agents of their own, and the hosts that do not tell."""
    rows = await db.fetch("SELECT host FROM hypervisors ORDER BY host")
    elsewhere = [row["host"] for row in rows if row["host"] not in own]
    if not elsewhere or not config.messaging.url:
        return [], set(elsewhere)
    from kilonova.hosts.nats import NatsTransport
    from kilonova.hosts.transport import HostTrouble, list_all_guests

    transport = NatsTransport(config.messaging)
    running = asyncio.create_task(transport.run())
    try:
        answers = await list_all_guests(transport, elsewhere, timeout=_ANSWER_SECONDS)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    found: list[tuple[str, GuestState]] = []
    unasked: set[str] = set()
    for host, guests in answers.items():
        if isinstance(guests, HostTrouble):
            click.echo(f"Guests of {host} are not compared: {guests.message}", err=True)
            unasked.add(host)
        else:
            found += [(host, guest) for guest in guests]
    return found, unasked


def _volumes(config: Config, db: Database) -> Look:
    """How the volume service is asked. One that is elsewhere takes a token of this cloud, which must run for that."""
    from kilonova.doctor.volumes import built_in, elsewhere

    if not config.volume.url:
        return partial(built_in, db)
    return partial(elsewhere, config)


def _print_table(findings: Sequence[Finding]) -> None:
    from kilonova.doctor.remedies import REMEDIES

    console = bars.console()
    console.print("1 finding" if len(findings) == 1 else f"{len(findings)} findings")
    table = bars.table("WHAT", "ID", "DETAILS")
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
