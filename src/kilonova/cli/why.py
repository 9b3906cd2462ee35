"""`kilonova why`: why a server is where it is, or nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kilonova.cli import bars, options
from kilonova.cli.cloud import Cloud, Refused, as_json, cloud

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("server")
@click.option("--all", "every", is_flag=True, help="Every attempt, not only the newest.")
@cloud
@as_json
@options.together(options.data, options.file)
def why(server: str, every: bool, cloud: str, as_json: bool, file: Path | None, data: str | None) -> None:
    """Show why SERVER (its id or name) is where it is, or why no host was found for it.

    Asks the running cloud. What you see of hosts depends on --cloud, as it does over the API.
    """
    asked = Cloud(options.load(file, data=data).data_dir, cloud)
    shown, found = _found(asked, server)
    if not every:
        found["attempts"] = found["attempts"][:1]
    if as_json:
        import orjson

        click.echo(orjson.dumps({**found, "server": shown}, option=orjson.OPT_INDENT_2))
        return
    console = bars.console()
    console.print(_headline(shown), soft_wrap=True)
    if not found["attempts"]:
        console.print("No attempt to find a host was made yet.")
    for attempt in found["attempts"]:
        _print(console, attempt)


def _found(asked: Cloud, server: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The server, and its attempts. The attempts of a deleted one are found by its id alone."""
    try:
        attempts = asked.get("compute", "servers", server, "kilonova-placement")
        return _shown(asked, server), attempts
    except Refused as error:
        if error.status != 404:
            raise
    named = asked.get("compute", "servers", name=f"^{_literally(server)}$", **_everywhere(asked))["servers"]
    if not named:
        raise options.Failure(f"there is no server {server!r}")
    if len(named) > 1:
        ids = ", ".join(one["id"] for one in named)
        raise options.Failure(f"{len(named)} servers are called {server!r}; give one of their ids: {ids}")
    identity = named[0]["id"]
    return _shown(asked, identity), asked.get("compute", "servers", identity, "kilonova-placement")


def _literally(name: str) -> str:
    """As a pattern of the API, which knows no escapes but of characters that mean something in a pattern."""
    return "".join(f"\\{one}" if one in r"\.^$*+?()[]{}|" else one for one in name)


def _everywhere(asked: Cloud) -> dict[str, str]:
    """Servers of all projects, for who may list them."""
    try:
        asked.get("compute", "servers", all_tenants="1", limit="1")
        return {"all_tenants": "1"}
    except Refused:
        return {}


def _shown(asked: Cloud, identity: str) -> dict[str, Any]:
    try:
        shown = asked.get("compute", "servers", identity)["server"]
    except Refused as error:
        if error.status != 404:
            raise
        return {"id": identity, "name": None, "status": "DELETED", "host": None}
    return {
        "id": identity,
        "name": shown["name"],
        "status": shown["status"],
        "host": shown.get("OS-EXT-SRV-ATTR:host"),
    }


def _headline(server: dict[str, Any]) -> str:
    where = f" on {server['host']}" if server["host"] else ""
    return f"{server['name'] or 'server'} ({server['id']}) is {server['status']}{where}"


def _print(console: Console, attempt: dict[str, Any]) -> None:
    console.print(f"\n{attempt['created_at']} {attempt['kind']}: {attempt['message']}", soft_wrap=True)
    if text := bars.asked_for(attempt["asked"]):
        console.print(f"asked for {text}", soft_wrap=True)
    if attempt["lost"]:
        times = "once" if attempt["lost"] == 1 else f"{attempt['lost']} times"
        console.print(f"others were faster on every proposed host {times} before")
    if attempt["filters"]:
        console.print(_filters(attempt))
    if attempt.get("candidates"):
        console.print(bars.fitting(console, lambda width: _candidates(attempt, width)))
    if attempt.get("rejections"):
        console.print(bars.fitting(console, lambda width: _rejections(attempt, width)))
        more = sum(result["rejected"] for result in attempt["filters"]) - len(attempt["rejections"])
        if more > 0:
            console.print(f"and {more} more hosts")


def _filters(attempt: dict[str, Any]) -> Any:
    """How many hosts were left after each filter that had something to check."""
    from kilonova.scheduler.explain import Cause

    table = bars.table("FILTER", "LEFT", "", "REJECTED", "WHY", numbers=("LEFT", "REJECTED"))
    for result in attempt["filters"]:
        reasons = ", ".join(str(Cause(reason["text"], reason["hosts"])) for reason in result["reasons"])
        left = bars.bar(result["left"], attempt["hosts"])
        table.add_row(result["filter"], str(result["left"]), left, str(result["rejected"] or ""), reasons)
    return table


def _candidates(attempt: dict[str, Any], width: int) -> Any:
    needed = bars.needed(attempt["asked"])
    weighers = _weighers(attempt["candidates"])
    weight = ["WEIGHT", *weighers] if "weight" in attempt["candidates"][0] else []
    table = bars.table("", "HOST", *weight, *(f"{name} FREE" for name in needed), numbers=weight)
    for one in attempt["candidates"]:
        chosen = one.get("host") is not None and one["host"] == attempt.get("host")
        parts = [f"{one['weight']:.2f}", *(f"{one['weights'][name]:.2f}" for name in weighers)] if weight else []
        free = (bars.free(one["free"], needed, name, width) for name in needed)
        table.add_row("→" if chosen else "", _name(one), *parts, *free)
    return table


def _weighers(candidates: list[dict[str, Any]]) -> list[str]:
    """Those that made a difference."""
    names = candidates[0].get("weights", {})
    return [name for name in names if any(one["weights"][name] for one in candidates)]


def _rejections(attempt: dict[str, Any], width: int) -> Any:
    needed = bars.needed(attempt["asked"])
    table = bars.table("HOST", "REJECTED BY", "NEED", "HAVE", *(f"{name} FREE" for name in needed))
    for one in attempt["rejections"]:
        free = (bars.free(one["free"], needed, name, width) for name in needed)
        table.add_row(_name(one), one["filter"], one.get("need", one["reason"]), one.get("have", ""), *free)
    return table


def _name(host: dict[str, Any]) -> str:
    name, node = host.get("host"), host.get("hypervisor_hostname")
    if name is None:
        return str(host["hypervisor_uuid"])
    return name if node in (None, name) else f"{name}/{node}"
