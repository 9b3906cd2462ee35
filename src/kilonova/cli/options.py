"""Options that several commands share, and how their values and a configuration file become a Config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kilonova.config import Config, ConfigError

Command = Callable[..., Any]

data = click.option(
    "--data", metavar="DIR", help="Where everything is kept.  [default: data]", type=click.Path(file_okay=False)
)
database = click.option("--database", metavar="URL", help="postgresql://…; without it SQLite in the data directory.")
file = click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar="KILONOVA_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file with anything that has no option here.",
)
host = click.option("--host", metavar="ADDR", help="The address to listen on.  [default: 127.0.0.1]")
port = click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="0 picks a free one.  [default: 8774]")
placement_port = click.option(
    "--placement-port",
    "placement__port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="A port with the Placement API at its root, beside /placement; 0 picks a free one.",
)
hosts = click.option(
    "--hosts", metavar="N", type=click.IntRange(0, 100_000), help="How many simulated hosts.  [default: 3]"
)
host_shape = click.option(
    "--host-shape",
    "sim__shape",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="What the simulated hosts are made of: NUMA cells, GPUs, shared disk. See docs/host-shapes.md.",
)
zones = click.option("--zones", metavar="A,B", help="Availability zones to spread the hosts over.")
driver = click.option("--driver", type=click.Choice(["sim", "libvirt"]), help="What hosts are.  [default: sim]")
policy = click.option(
    "--policy", metavar="FILE", type=click.Path(dir_okay=False), help="A policy file in oslo.policy's format."
)


class Failure(click.ClickException):
    """One line on the terminal, and exit code 1."""


class InUse(Failure):
    """The data directory belongs to another process."""

    exit_code = 3


def one_line_each(reasons: str) -> str:
    """Reasons as they stand on the terminal: each on its line, without whatever else breaks lines."""
    return "\n".join(" ".join(line.split()) for line in reasons.splitlines() if line.strip())


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def load(file: Path | None, **flags: Any) -> Config:
    """`flags` with the value None were not given; two underscores stand for the dot of a section."""
    from kilonova import config

    try:
        return config.load(file, flags={name.replace("__", "."): value for name, value in flags.items()})
    except ConfigError as error:
        raise Failure(str(error)) from None
