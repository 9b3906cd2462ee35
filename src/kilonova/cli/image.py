"""`kilonova image`: builds images to boot from."""

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
    """Build images to boot from."""


@image.command()
@click.option(
    "--file", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, do not upload."
)
@click.option("--name", default="tiny", show_default=True, help="The image's name in the cloud.")
@options.combine(options.data, options.file)
def tiny(target: Path | None, name: str, file: Path | None, **flags: str | None) -> None:
    """Build a tiny Linux image from the distribution's packages, and upload it to the running cloud."""
    import tempfile

    from kilonova.cli.cloud import Cloud
    from kilonova.tiny import CannotBuild, build

    try:
        if target is not None:
            build(target)
            click.echo(f"{target} ({target.stat().st_size >> 20} MiB)")
            return
        cloud = Cloud(options.load(file, **flags), "kilonova")
        with tempfile.TemporaryDirectory() as directory:
            built = Path(directory) / "tiny.qcow2"
            build(built)
            click.echo(f"{_upload(cloud, name, built.read_bytes())} {name}")
    except CannotBuild as error:
        raise Failure(f"the tiny image cannot be built: {error}") from None


def _upload(cloud: Cloud, name: str, data: bytes) -> str:
    fields = {"name": name, "disk_format": "qcow2", "container_format": "bare", "visibility": "public"}
    image_id: str = cloud.post("image", "images", body=fields)["id"]
    cloud.upload(image_id, data)
    return image_id
