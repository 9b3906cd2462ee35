"""The command line. A command's module is imported only when the command runs, to keep start-up fast."""

from __future__ import annotations

import importlib

import click

# name: (module, text in `kilonova --help`)
COMMANDS = {
    "up": ("up", "Run a whole cloud in one process."),
    "api": ("up", "Run the APIs alone, on PostgreSQL."),
    "worker": ("up", "Run a worker with its hosts, on PostgreSQL."),
    "register": ("register", "Register Kilonova in a real Keystone: user, roles, endpoints."),
    "agent": ("agent", "Run the agent of one host, connected by NATS."),
    "why": ("why", "Show why a server is on its host, or why no host was found for it."),
    "fit": ("fit", "Show how many more servers of a flavor would fit, and where."),
    "host": ("host", "Move all servers away from a host: host drain."),
    "image": ("image", "Make an image to boot real guests from: image tiny."),
    "doctor": ("doctor", "Compare servers with allocations, placement, ports, guests and operations."),
    "operations": ("operations", "Show, cancel and retry operations."),
    "backup": ("backup", "Write a backup of a cloud, running or stopped."),
    "restore": ("backup", "Restore a backup."),
    "db": ("db", "Create, upgrade, inspect and purge the database."),
    "keys": ("keys", "List and rotate the keys that sign tokens."),
    "sim": ("sim", "Inspect simulated hosts, and inject failures."),
    "policy": ("policy", "Print the policy rules and their defaults: policy sample."),
    "version": ("version", "Print the version."),
}


class LazyGroup(click.Group):
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
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Kilonova: a compute control plane with the OpenStack Compute API."""
