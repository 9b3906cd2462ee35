"""`kilonova agent`: runs the agent of one host as a process."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kilonova.cli import options

if TYPE_CHECKING:
    from kilonova.config import Config


@click.command()
@options.combine(options.data, options.driver, options.insecure, options.file)
@click.option("--name", "agent__host", metavar="HOST", help="The host's name.  [default: the machine's name]")
@click.option("--nats", "messaging__url", metavar="URL", help="The NATS server, such as nats://cloud:4222.")
def agent(file: Path | None, **flags: object) -> None:
    """Run the agent of one host. It is connected to the control plane by NATS and needs no access to the database.

    Guests keep running when the agent stops. Start it again with the same data directory. Its permissions on the NATS
    server are in docs/agents.md.
    """
    serve(options.load(file, **flags))


def serve(config: Config) -> None:
    """Run until SIGTERM or SIGINT. Raises Failure if the agent cannot start."""
    import uvloop

    from kilonova import datadir
    from kilonova.agent_process import check
    from kilonova.cli.serve import check_libvirt, print_notes, start_log
    from kilonova.startup_checks import CannotStart

    directory = config.data_dir
    try:
        check(config)
        if config.driver == "libvirt":
            check_libvirt(config)
            print_notes(config)
        os.umask(0o077)
        with ExitStack() as stack:
            datadir.prepare(directory)
            stack.enter_context(datadir.lock(directory))
            start_log(config)
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            runner.run(_run(config))
    except datadir.DirectoryInUse as error:
        raise options.InUse(str(error)) from None
    except CannotStart as error:
        raise options.Failure(options.one_reason_per_line(str(error))) from None
    except OSError as error:
        raise options.Failure(f"{error.filename or directory}: {error.strerror}") from None


async def _run(config: Config) -> None:
    from kilonova.agent_process import running
    from kilonova.cli.serve import stop_event

    stop = stop_event()
    async with running(config) as process:
        click.echo(f"agent       serving {process.host} (process {os.getpid()}, driver {config.driver})")
        await process.background.run_until(stop)
