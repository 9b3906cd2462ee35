"""`kilonova up`: a whole cloud in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kilonova.cli import options


@click.command()
@options.together(
    options.data,
    options.host,
    options.port,
    options.placement_port,
    options.hosts,
    options.host_shape,
    options.zones,
    options.driver,
    options.database,
    options.policy,
    options.file,
)
def up(file: Path | None, hosts: int | None, **flags: Any) -> None:
    """Run a whole cloud in one process: APIs, worker, and simulated hosts or this machine as a real one.

    It keeps everything in the data directory and goes on where it was when started again. SIGTERM or Ctrl-C stops it.
    """
    from kilonova.cli.serve import serve
    from kilonova.process import Roles

    serve(options.load(file, sim__hosts=hosts, **flags), Roles(api=True, worker=True))
