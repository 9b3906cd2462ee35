"""`kilonova policy`: the rules to write a policy file from."""

from __future__ import annotations

import click


@click.group()
def policy() -> None:
    """Who may do what."""


@policy.command()
def sample() -> None:
    """Print every rule with its default, commented out: a file for --policy to begin with."""
    from kilonova.policy import sample as text

    click.echo(text())
