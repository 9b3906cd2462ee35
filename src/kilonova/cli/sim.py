"""`kilonova sim`: injects failures and latency into simulated hosts, and shows their guests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import click

from kilonova import clock
from kilonova.cli import options
from kilonova.hosts.drivers.sim.rules import ANY, MODES, STEPS, Rule, Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore
from kilonova.hosts.messages import Inventory

_host = click.option("--host", default=ANY, show_default=True, help="A host's name, or a pattern of names.")
_step = click.option(
    "--step", type=click.Choice([*STEPS, ANY]), default=ANY, show_default=True, help="The step of the host."
)


class _FiniteFloat(click.FloatRange):
    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


_chance = click.option(
    "--chance", type=_FiniteFloat(0, 1, min_open=True), help="The probability, such as 0.3.  [default: 1]"
)


@click.group()
def sim() -> None:
    """Simulated hosts: injected failures, latencies, guests."""


@sim.command()
@_host
@_step
@click.option("--times", type=click.IntRange(1, 1_000_000), help="How often.  [default: until cleared]")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="error",
    show_default=True,
    help="error: the hypervisor refuses. unreachable: no response; without --times and --step the host goes down."
    " hang: no response until the rule is cleared, then the step continues.",
)
@click.option("--message", help="The error's text.")
@_chance
@options.data
@options.file
def fail(
    host: str,
    step: str,
    times: int | None,
    mode: str,
    message: str | None,
    chance: float | None,
    data: str | None,
    file: Path | None,
) -> None:
    """Make a step fail on a host."""
    with _open_store(data, file) as store:
        _check_host(store, host)
        number = Rules(store).add_failure(host, step, mode, times, message, chance)
    click.echo(f"rule {number}: {_target_text(host, step)} {_failure_text(mode, times)}{_chance_text(chance)}")


@sim.command()
@_host
@_step
@click.option("--seconds", type=_FiniteFloat(min=0), required=True, help="How long; 0 for no latency.")
@_chance
@options.data
@options.file
def latency(host: str, step: str, seconds: float, chance: float | None, data: str | None, file: Path | None) -> None:
    """Add latency to a step on a host. The newest matching latency applies."""
    with _open_store(data, file) as store:
        _check_host(store, host)
        Rules(store).set_latency(host, step, seconds, chance)
    click.echo(f"{_target_text(host, step)} takes {seconds:g} s{_chance_text(chance)}")


@sim.command("list")
@options.data
@options.file
def list_rules(data: str | None, file: Path | None) -> None:
    """Show the rules and how often each was applied."""
    with _open_store(data, file) as store:
        rules = Rules(store).all()
    _print_table(("RULE", "HOST", "STEP", "EFFECT", "APPLIED"), [_rule_row(rule) for rule in rules])


@sim.command()
@click.option("--host", help="Only rules for this name or pattern.")
@click.option("--step", type=click.Choice([*STEPS, ANY]), help="Only rules for this step.")
@options.data
@options.file
def clear(host: str | None, step: str | None, data: str | None, file: Path | None) -> None:
    """Remove the rules."""
    with _open_store(data, file) as store:
        number = Rules(store).clear(host, step)
    click.echo(f"{number} removed")


@sim.command()
@click.option("--host", default=ANY, help="Only guests of this host or pattern.")
@options.data
@options.file
def guests(host: str, data: str | None, file: Path | None) -> None:
    """Show the guests of the simulated hypervisors, including copies in slots.

    SLOT is the id of the operation that made the copy. Guests with the same DISK have the same data.
    """
    with _open_store(data, file) as store:
        _check_host(store, host)
        found = store.all_guests()
    rows = [
        (
            name,
            guest.id,
            guest.name,
            guest.power,
            str(guest.boots),
            clock.iso(guest.created_at),
            guest.disk or "-",
            guest.slot or "-",
        )
        for name, guest in found
        if fnmatchcase(name, host)
    ]
    _print_table(("HOST", "ID", "NAME", "POWER", "BOOTS", "CREATED", "DISK", "SLOT"), rows)


@sim.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
def shape(path: Path) -> None:
    """Check a file of host shapes, and show the providers of each shape."""
    from kilonova.hosts.drivers.sim.shapes import ShapeError, load, to_inventory

    try:
        shapes = load(path)
    except ShapeError as error:
        raise options.Failure(str(error)) from None
    for one in shapes.shape:
        many = "all other hosts" if one.hosts is None else f"{one.hosts} host{'' if one.hosts == 1 else 's'}"
        click.echo(f"{one.name}: {many}")
        rows = [("HOST", _inventory_text(to_inventory(one.inventory)), " ".join(one.traits))]
        rows += [
            (f"HOST_{part.name}", _inventory_text(part.inventory), " ".join(part.traits)) for part in one.providers()
        ]
        _print_table(("PROVIDER", "INVENTORY", "TRAITS"), rows)
    for shared in shapes.sharing:
        who = ", ".join((*shared.shapes, *shared.hosts)) or "all hosts"
        click.echo(f"{shared.name}: shared by {who}: {_inventory_text(to_inventory(shared.inventory))}")


def _inventory_text(inventory: Mapping[str, Inventory]) -> str:
    return ", ".join(f"{name} {amount.total}" for name, amount in inventory.items())


@contextmanager
def _open_store(data: str | None, file: Path | None) -> Iterator[SimStore]:
    directory = options.load(file, data=data).data_dir
    path = directory / SIM_FILE_NAME
    if not path.is_file():
        raise options.Failure(f"--data: {directory} has no simulated hosts (no file {SIM_FILE_NAME})")
    store = SimStore(path)
    try:
        yield store
    finally:
        store.close()


def _check_host(store: SimStore, pattern: str) -> None:
    """Raise Failure if no host matches: a rule with a mistyped name would never apply."""
    if not any(fnmatchcase(name, pattern) for name in store.hosts()):
        raise options.Failure(f"--host: no simulated host matches {pattern!r}")


def _target_text(host: str, step: str) -> str:
    where = "every host" if host == ANY else host
    return f"{'every step' if step == ANY else step} on {where}"


def _failure_text(mode: str, times: int | None) -> str:
    does = {"error": "fails", "unreachable": "gets no response", "hang": "hangs"}[mode]
    return f"{does} until cleared" if times is None else f"{does}, {times} times"


def _chance_text(chance: float | None) -> str:
    return "" if chance is None else f", in {100 * chance:g} % of the cases"


def _rule_row(rule: Rule) -> tuple[str, ...]:
    often = _chance_text(rule.chance)
    if rule.kind == "latency":
        return str(rule.id), rule.host, rule.step, f"takes {rule.seconds:g} s{often}", ""
    assert rule.mode is not None
    what = _failure_text(rule.mode, rule.times) + often + (f": {rule.message}" if rule.message else "")
    return str(rule.id), rule.host, rule.step, what, f"{rule.fired}{' (spent)' if rule.spent else ''}"


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
