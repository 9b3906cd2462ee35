"""The command line. Each command's module is imported when the command runs, so that none pays for another."""

from __future__ import annotations

import importlib

import click

# name: (module, what `kilonova --help` says of it)
COMMANDS = {
    "up": ("up", "Run a whole cloud in one process."),
    "api": ("api", "Run the APIs alone, on PostgreSQL."),
    "worker": ("worker", "Run a worker with its hosts, on PostgreSQL."),
    "agent": ("agent", "Run the agent of one host, reached by NATS."),
    "why": ("why", "Show why a server is where it is, or why no host was found for it."),
    "fit": ("fit", "Show how many more servers of a flavor would fit, and where."),
    "host": ("host", "Move everything away from a host: host drain."),
    "image": ("image", "Make an image to boot real guests from: image tiny."),
    "doctor": ("doctor", "Compare servers with allocations, placement, ports, guests and operations."),
    "operations": ("operations", "Look at operations, cancel them, try them again."),
    "db": ("db", "Create, upgrade and inspect the database."),
    "sim": ("sim", "Look at simulated hosts, and make them fail."),
    "policy": ("policy", "Print the policy rules and their defaults: policy sample."),
    "version": ("version", "Print the version."),
}


class Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"kilonova.cli.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Kilonova: a compute control plane that speaks the OpenStack Compute API."""
