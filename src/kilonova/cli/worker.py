"""`kilonova worker`: operations and hosts without an API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kilonova.cli import options


@click.command()
@options.together(
    options.data,
    options.hosts,
    options.host_shape,
    options.zones,
    options.driver,
    options.database,
    options.policy,
    options.file,
)
def worker(file: Path | None, hosts: int | None, **flags: Any) -> None:
    """Run a worker with its simulated hosts. Workers that share a PostgreSQL must share the data directory too."""
    from kilonova.cli.serve import serve
    from kilonova.process import Roles

    serve(options.load(file, sim__hosts=hosts, **flags), Roles(api=False, worker=True))
