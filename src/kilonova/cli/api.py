"""`kilonova api`: the APIs without a worker."""

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
    options.database,
    options.policy,
    options.file,
)
def api(file: Path | None, **flags: Any) -> None:
    """Run the APIs alone, as many as you like. Workers on the same PostgreSQL carry out what they accept."""
    from kilonova.cli.serve import serve
    from kilonova.process import Roles

    serve(options.load(file, **flags), Roles(api=True, worker=False))
