"""What servers and their moves hold of hosts, beside what they need and where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from kilonova.compute.servers.states import ERROR
from kilonova.doctor.facts import Facts, Finding, Held, amounts_in_words, listed, named
from kilonova.scheduler.specs import needs
from kilonova.store import Row

INSTANCE, MOVE = "INSTANCE", "MIGRATION"


def findings(facts: Facts) -> Iterator[Finding]:
    yield from _without_owner(facts)
    yield from _on_the_wrong_host(facts)
    yield from _wrong_amounts(facts)
    yield from _kept_for_resizes(facts)
    yield from _wrong_usage(facts)


def _without_owner(facts: Facts) -> Iterator[Finding]:
    moves = {move["operation_id"] for move in facts.waiting.values()}
    for consumer, held in facts.allocations.items():
        if consumer in facts.busy:
            continue
        if not held.amounts:
            yield Finding("consumer without allocations", consumer, f"of type {held.type}")
        elif held.type == INSTANCE and consumer not in facts.servers:
            yield Finding("allocation without server", consumer, f"on {listed(held.providers)}")
        elif held.type == MOVE and consumer not in moves:
            yield Finding("allocation without move", consumer, f"on {listed(held.providers)}")


def _on_the_wrong_host(facts: Facts) -> Iterator[Finding]:
    for server in facts.idle():
        found = facts.allocations.get(server["id"])
        where = {server["hypervisor_hostname"]} - {None}
        if found is not None and found.amounts and found.places != where:
            detail = f"{named(server)} is on {listed(where) or 'no host'}, not {_places(found)}"
            yield Finding("allocation on the wrong host", server["id"], detail)


def _wrong_amounts(facts: Facts) -> Iterator[Finding]:
    """What a server holds, summed over all providers, is what its flavor and image ask for."""
    for server in facts.idle():
        found = facts.allocations.get(server["id"])
        amounts = found.amounts if found else Counter[str]()
        if server["hypervisor_hostname"] is None or (server["vm_state"] == ERROR and not amounts):
            continue
        try:
            wanted = _needs(orjson.loads(server["flavor"]), server)
        except ValueError as error:
            yield Finding("server's needs cannot be read", server["id"], f"{named(server)}: {error}")
            continue
        if amounts == wanted:
            continue
        if not amounts:
            detail = f"{named(server)} on {server['hypervisor_hostname']}"
            yield Finding("server without allocation", server["id"], detail)
        else:
            detail = f"{named(server)} holds {amounts_in_words(amounts)} and needs {amounts_in_words(wanted)}"
            yield Finding("allocation differs from needs", server["id"], detail)


def _kept_for_resizes(facts: Facts) -> Iterator[Finding]:
    """Until a resize is decided, it holds what the server needs to go back."""
    for server in facts.idle():
        move = facts.waiting.get(server["id"])
        if move is None:
            continue
        held = facts.allocations.get(move["operation_id"]) or Held(None, Counter(), set(), set())
        wanted = _needs(orjson.loads(move["old_flavor"]), server)
        if held.amounts != wanted or held.places != {move["source_node"]}:
            keeps = f"{amounts_in_words(held.amounts)} on {_places(held) or 'no host'}"
            needed = f"{amounts_in_words(wanted)} on {move['source_node']}"
            detail = f"the resize of {named(server)} keeps {keeps}, and {needed} is needed to revert it"
            yield Finding("resize cannot be reverted", server["id"], detail)


def _wrong_usage(facts: Facts) -> Iterator[Finding]:
    """What the quota counts; more than the flavor's only while a resize is decided."""
    for server in facts.idle():
        flavor = orjson.loads(server["flavor"])
        if server["id"] not in facts.waiting and (server["vcpus"], server["ram"]) != (flavor["vcpus"], flavor["ram"]):
            counted = f"{server['vcpus']} cores and {server['ram']} MiB"
            detail = f"{named(server)} counts as {counted}, and has {flavor['vcpus']} and {flavor['ram']}"
            yield Finding("quota counts wrongly", server["id"], detail)


def _needs(flavor: dict[str, Any], server: Row) -> Counter[str]:
    asked = needs(flavor, orjson.loads(server["image_properties"]), root_disk=server["image_id"] is not None)
    wanted = Counter({name: amount for name, amount in asked["resources"].items() if amount})
    for group in asked["groups"].values():
        wanted.update(group.resources)
    return wanted


def _places(held: Held) -> str:
    return listed(held.places or held.providers)
