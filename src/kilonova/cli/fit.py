"""`kilonova fit`: how many more servers of a flavor fit, where, and which resource runs out first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kilonova.cli import options, tables
from kilonova.cli.cloud import ApiError, Cloud, as_json, cloud

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@click.option("--flavor", required=True, metavar="FLAVOR", help="Id or name.")
@click.option("--zone", metavar="ZONE", help="Only in this availability zone.")
@click.option("--image", metavar="IMAGE", help="Id or name. Its requirements on hosts are included.")
@click.option("--limit", type=click.IntRange(0, 1000), default=20, show_default=True, help="How many hosts to show.")
@cloud
@as_json
@options.combine(options.data, options.file)
def fit(
    flavor: str,
    zone: str | None,
    image: str | None,
    limit: int,
    cloud: str,
    as_json: bool,
    file: Path | None,
    data: str | None,
) -> None:
    """Show how many more servers of a flavor would fit, where, and which resource runs out first.

    Needs a running cloud. Hosts that are reserved for a project are not counted.
    """
    client = Cloud(options.load(file, data=data), cloud)
    image_id = None if image is None else _image_id(client, image)
    found = client.get("compute", "kilonova-fit", flavor=flavor, zone=zone, image=image_id, limit=limit)["fit"]
    if as_json:
        import orjson

        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    _print(flavor, zone, found)


def _image_id(client: Cloud, named: str) -> str:
    """The id of the image with that name; otherwise `named` itself, which may be an id."""
    try:
        images = client.get("image", "images", name=named)["images"]
    except ApiError:
        images = []
    if len(images) > 1:
        ids = ", ".join(one["id"] for one in images)
        raise options.Failure(f"{len(images)} images are called {named!r}; give one of their ids: {ids}")
    return str(images[0]["id"]) if images else named


def _print(flavor: str, zone: str | None, found: dict[str, Any]) -> None:
    console = tables.make_console()
    where = f" in zone {zone}" if zone else ""
    servers = "1 more server fits" if found["servers"] == 1 else f"{found['servers']} more servers fit"
    needs = {key: value for key, value in found["asked"].items() if key != "zone"}
    console.print(f"{servers}{where}: {flavor} needs {tables.describe_request(needs)}", soft_wrap=True)
    console.print(found["message"], soft_wrap=True)
    for title, counts, heading in (("ZONE", found["zones"], "SERVERS"), ("RUNS OUT FIRST", found["runs_out"], "HOSTS")):
        if counts:
            console.print(_counts(title, counts, heading))
    if found["hosts"]:
        console.print(tables.fit_to_console(console, lambda width: _hosts(found, width)))
        more = found["hosts_with_room"] - len(found["hosts"])
        if more > 0:
            console.print(f"and {more} more hosts with room for fewer or as many")
        if any(one["shared"] for one in found["hosts"]):
            console.print("* shares resources with other hosts: not all of these servers fit at once")


def _counts(title: str, counts: dict[str, int], heading: str) -> Table:
    table = tables.make_table(title, heading, "", numbers=(heading,))
    most = max(counts.values())
    for name, number in counts.items():
        table.add_row(name, str(number), tables.draw_bar(number, most, 20).rstrip("·"))
    return table


def _hosts(found: dict[str, Any], width: int) -> Table:
    needed = tables.total_needed(found["asked"])
    table = tables.make_table(
        "HOST", "ZONE", "SERVERS", "RUNS OUT FIRST", *(f"{name} FREE" for name in needed), numbers=("SERVERS",)
    )
    for one in found["hosts"]:
        free = (tables.free_cell(one["free"], needed, name, width) for name in needed)
        number = f"{one['servers']}{'*' if one['shared'] else ''}"
        table.add_row(one["host"], one["zone"], number, one["runs_out"], *free)
    return table
