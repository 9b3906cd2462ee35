"""`kilonova why`: explains why a server is on its host, or why no host was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kilonova.cli import options, tables
from kilonova.cli.cloud import ApiError, Cloud, as_json, cloud

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@click.command()
@click.argument("server")
@click.option("--all", "show_all", is_flag=True, help="Show every attempt, not only the newest.")
@cloud
@as_json
@options.combine(options.data, options.file)
def why(server: str, show_all: bool, cloud: str, as_json: bool, file: Path | None, data: str | None) -> None:
    """Show why SERVER (its id or name) is on its host, or why no host was found for it.

    Needs a running cloud. Which hosts you see depends on --cloud, as in the API.
    """
    client = Cloud(options.load(file, data=data), cloud)
    shown, found = _find_attempts(client, server)
    if not show_all:
        found["attempts"] = found["attempts"][:1]
    if as_json:
        import orjson

        click.echo(orjson.dumps({**found, "server": shown}, option=orjson.OPT_INDENT_2))
        return
    console = tables.make_console()
    console.print(_headline(shown), soft_wrap=True)
    if not found["attempts"]:
        console.print("There was no attempt to find a host yet.")
    for attempt in found["attempts"]:
        _print(console, attempt)


def _find_attempts(client: Cloud, server: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The server and its attempts. A deleted server is found only by its id."""
    try:
        attempts = client.get("compute", "servers", server, "kilonova-placement")
        return _find_server(client, server), attempts
    except ApiError as error:
        if error.status != 404:
            raise
    named = client.get("compute", "servers", name=f"^{_escape(server)}$", **_all_projects_query(client))["servers"]
    if not named:
        raise options.Failure(f"there is no server {server!r}")
    if len(named) > 1:
        ids = ", ".join(one["id"] for one in named)
        raise options.Failure(f"{len(named)} servers are called {server!r}; give one of their ids: {ids}")
    server_id = named[0]["id"]
    return _find_server(client, server_id), client.get("compute", "servers", server_id, "kilonova-placement")


def _escape(name: str) -> str:
    """The name escaped for the API's filter, which accepts escapes only of special characters."""
    return "".join(f"\\{one}" if one in r"\.^$*+?()[]{}|" else one for one in name)


def _all_projects_query(client: Cloud) -> dict[str, str]:
    """The query for servers of all projects; empty if the caller may not list them."""
    try:
        client.get("compute", "servers", all_tenants="1", limit="1")
        return {"all_tenants": "1"}
    except ApiError:
        return {}


def _find_server(client: Cloud, server_id: str) -> dict[str, Any]:
    try:
        shown = client.get("compute", "servers", server_id)["server"]
    except ApiError as error:
        if error.status != 404:
            raise
        return {"id": server_id, "name": None, "status": "DELETED", "host": None}
    return {
        "id": server_id,
        "name": shown["name"],
        "status": shown["status"],
        "host": shown.get("OS-EXT-SRV-ATTR:host"),
    }


def _headline(server: dict[str, Any]) -> str:
    where = f" on {server['host']}" if server["host"] else ""
    return f"{server['name'] or 'server'} ({server['id']}) is {server['status']}{where}"


def _print(console: Console, attempt: dict[str, Any]) -> None:
    console.print(f"\n{attempt['created_at']} {attempt['kind']}: {attempt['message']}", soft_wrap=True)
    if text := tables.describe_request(attempt["asked"]):
        console.print(f"requested {text}", soft_wrap=True)
    if attempt["lost"]:
        times = "once" if attempt["lost"] == 1 else f"{attempt['lost']} times"
        console.print(f"other requests had claimed every proposed host {times} before")
    if attempt["filters"]:
        console.print(_filters(attempt))
    if attempt.get("candidates"):
        console.print(tables.fit_to_console(console, lambda width: _candidates(attempt, width)))
    if attempt.get("rejections"):
        console.print(tables.fit_to_console(console, lambda width: _rejections(attempt, width)))
        more = sum(result["rejected"] for result in attempt["filters"]) - len(attempt["rejections"])
        if more > 0:
            console.print(f"and {more} more hosts")


def _filters(attempt: dict[str, Any]) -> Table:
    """The hosts left after each filter that checked something."""
    from kilonova.scheduler.explain import Cause

    table = tables.make_table("FILTER", "LEFT", "", "REJECTED", "WHY", numbers=("LEFT", "REJECTED"))
    for result in attempt["filters"]:
        reasons = ", ".join(str(Cause(reason["text"], reason["hosts"])) for reason in result["reasons"])
        left = tables.draw_bar(result["left"], attempt["hosts"])
        table.add_row(result["filter"], str(result["left"]), left, str(result["rejected"] or ""), reasons)
    return table


def _candidates(attempt: dict[str, Any], width: int) -> Table:
    needed = tables.total_needed(attempt["asked"])
    weighers = _weighers(attempt["candidates"])
    weight = ["WEIGHT", *weighers] if "weight" in attempt["candidates"][0] else []
    table = tables.make_table("", "HOST", *weight, *(f"{name} FREE" for name in needed), numbers=weight)
    for one in attempt["candidates"]:
        chosen = one.get("host") is not None and one["host"] == attempt.get("host")
        parts = [f"{one['weight']:.2f}", *(f"{one['weights'][name]:.2f}" for name in weighers)] if weight else []
        free = (tables.free_cell(one["free"], needed, name, width) for name in needed)
        table.add_row("→" if chosen else "", _name(one), *parts, *free)
    return table


def _weighers(candidates: list[dict[str, Any]]) -> list[str]:
    """The weighers with a weight other than zero for some candidate."""
    names = candidates[0].get("weights", {})
    return [name for name in names if any(one["weights"][name] for one in candidates)]


def _rejections(attempt: dict[str, Any], width: int) -> Table:
    needed = tables.total_needed(attempt["asked"])
    table = tables.make_table("HOST", "REJECTED BY", "NEED", "HAVE", *(f"{name} FREE" for name in needed))
    for one in attempt["rejections"]:
        free = (tables.free_cell(one["free"], needed, name, width) for name in needed)
        table.add_row(_name(one), one["filter"], one.get("need", one["reason"]), one.get("have", ""), *free)
    return table


def _name(host: dict[str, Any]) -> str:
    name, node = host.get("host"), host.get("hypervisor_hostname")
    if name is None:
        return str(host["hypervisor_uuid"])
    return name if node in (None, name) else f"{name}/{node}"
