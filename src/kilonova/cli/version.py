"""`kilonova version`."""

from __future__ import annotations

import click

import kilonova


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(kilonova.__version__)
