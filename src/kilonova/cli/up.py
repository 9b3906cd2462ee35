"""`kilonova up`, `kilonova api` and `kilonova worker`: run a whole cloud, or one of its processes."""

from __future__ import annotations

from pathlib import Path

import click

from kilonova.cli import options

_api_options = options.combine(options.host, options.port, options.placement_port, options.tls)
_worker_options = options.combine(options.hosts, options.host_shape, options.zones, options.driver)
_common_options = options.combine(options.database, options.policy, options.insecure, options.file)


@click.command()
@options.combine(options.data, _api_options, _worker_options, _common_options)
def up(file: Path | None, **flags: object) -> None:
    """Run a whole cloud in one process: APIs, worker, and simulated hosts or this machine as a real host.

    All data is in the data directory, and a restart continues from there. SIGTERM or Ctrl-C stops the process.
    """
    _serve(file, flags, api=True, worker=True)


@click.command()
@options.combine(options.data, _api_options, _common_options)
def api(file: Path | None, **flags: object) -> None:
    """Run the APIs alone, in any number of processes. Workers on the same PostgreSQL execute the operations."""
    _serve(file, flags, api=True, worker=False)


@click.command()
@options.combine(options.data, _worker_options, _common_options)
def worker(file: Path | None, **flags: object) -> None:
    """Run a worker with its simulated hosts. Workers on the same PostgreSQL must share the data directory too."""
    _serve(file, flags, api=False, worker=True)


def _serve(file: Path | None, flags: dict[str, object], *, api: bool, worker: bool) -> None:
    from kilonova.cli.serve import serve
    from kilonova.startup_checks import Roles

    serve(options.load(file, **flags), Roles(api=api, worker=worker))
