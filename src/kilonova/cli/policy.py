"""`kilonova policy`: prints policy rules."""

from __future__ import annotations

import click


@click.group()
def policy() -> None:
    """Policy rules."""


@policy.command()
def sample() -> None:
    """Print every rule with its default, commented out, as a template for --policy."""
    from kilonova.policy import sample_policy as text

    click.echo(text())
