"""`kilonova image`: images to boot from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kilonova.cli import options
from kilonova.cli.options import Failure

if TYPE_CHECKING:
    from kilonova.cli.cloud import Cloud


@click.group()
def image() -> None:
    """Make images to boot from."""


@image.command()
@click.option("--file", "target", type=click.Path(dir_okay=False, path_type=Path), help="Only write it to this file.")
@click.option("--name", default="tiny", show_default=True, help="What the image is called in the cloud.")
@options.together(options.data, options.file)
def tiny(target: Path | None, name: str, file: Path | None, **flags: str | None) -> None:
    """Build a tiny Linux from the distribution's packages, and give it to the running cloud."""
    import tempfile

    from kilonova.cli.cloud import Cloud
    from kilonova.tiny import CannotBuild, build

    try:
        if target is not None:
            build(target)
            click.echo(f"{target} ({target.stat().st_size >> 20} MiB)")
            return
        cloud = Cloud(options.load(file, **flags).data_dir, "kilonova")
        with tempfile.TemporaryDirectory() as directory:
            built = Path(directory) / "tiny.qcow2"
            build(built)
            click.echo(f"{_give(cloud, name, built.read_bytes())} {name}")
    except CannotBuild as error:
        raise Failure(f"the tiny image cannot be built: {error}") from None


def _give(cloud: Cloud, name: str, data: bytes) -> str:
    wanted = {"name": name, "disk_format": "qcow2", "container_format": "bare", "visibility": "public"}
    made: str = cloud.post("image", "images", body=wanted)["id"]
    cloud.upload(made, data)
    return made
