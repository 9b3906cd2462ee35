"""Options that several commands share. Loads the Config from options and the configuration file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from kilonova.config import Config
from kilonova.config_names import ConfigError

Command = Callable[..., object]

data = click.option(
    "--data", metavar="DIR", help="The data directory.  [default: data]", type=click.Path(file_okay=False)
)
database = click.option("--database", metavar="URL", help="postgresql://…  [default: SQLite in the data directory]")
file = click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar="KILONOVA_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The TOML configuration file.",
)
host = click.option("--host", metavar="ADDR", help="The address to listen on.  [default: 127.0.0.1]")
port = click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="0 picks a free port.  [default: 8774]")
placement_port = click.option(
    "--placement-port",
    "placement__port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="A port with the Placement API at its root, in addition to /placement; 0 picks a free port.",
)
hosts = click.option(
    "--hosts",
    "sim__hosts",
    metavar="N",
    type=click.IntRange(0, 100_000),
    help="The number of simulated hosts.  [default: 3]",
)
host_shape = click.option(
    "--host-shape",
    "sim__shape",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Shapes of the simulated hosts: NUMA cells, GPUs, shared disk. See docs/host-shapes.md.",
)
zones = click.option("--zones", metavar="A,B", help="Availability zones to spread the hosts over.")
driver = click.option("--driver", type=click.Choice(["sim", "libvirt"]), help="The hypervisor driver.  [default: sim]")
tls = click.option(
    "--tls/--no-tls",
    default=None,
    help="Use HTTPS, with a certificate and an authority that are created in the data directory.",
)
insecure = click.option(
    "--insecure/--no-insecure",
    default=None,
    help="Allow connections without encryption on addresses that are not loopback.",
)
policy = click.option(
    "--policy", metavar="FILE", type=click.Path(dir_okay=False), help="A policy file in oslo.policy's format."
)


class Failure(click.ClickException):
    """An error message on the terminal, and exit code 1."""


class InUse(Failure):
    """Another process uses the data directory."""

    exit_code = 3


def one_reason_per_line(reasons: str) -> str:
    """Normalize whitespace, so that each reason is one line."""
    return "\n".join(" ".join(line.split()) for line in reasons.splitlines() if line.strip())


def combine(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def load(file: Path | None, **flags: object) -> Config:
    """Load the Config. Flags that are None are ignored; `a__b` is the setting `b` of section `a`."""
    from kilonova import config

    try:
        return config.load(file, flags={name.replace("__", "."): value for name, value in flags.items()})
    except ConfigError as error:
        raise Failure(str(error)) from None
