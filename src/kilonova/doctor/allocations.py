"""Checks allocations of servers and moves against their flavors and hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kilonova.compute.servers.states import ERROR
from kilonova.doctor.facts import CheckedServer, ConsumerAllocations, Facts, Finding, format_amounts, join_sorted
from kilonova.scheduler.requirements import Flavor, host_requirements

INSTANCE, MOVE = "INSTANCE", "MIGRATION"


def findings(facts: Facts) -> Iterator[Finding]:
    yield from _orphaned(facts)
    yield from _on_the_wrong_host(facts)
    yield from _wrong_amounts(facts)
    yield from _held_for_resizes(facts)
    yield from _wrong_usage(facts)


def _orphaned(facts: Facts) -> Iterator[Finding]:
    moves = {move.operation_id for move in facts.unconfirmed_resizes.values()}
    for consumer, held in facts.allocations.items():
        if consumer in facts.busy:
            continue
        if not held.amounts:
            yield Finding("consumer without allocations", consumer, f"of type {held.type}")
        elif held.type == INSTANCE and consumer not in facts.servers:
            yield Finding("allocation without server", consumer, f"on {join_sorted(held.providers)}")
        elif held.type == MOVE and consumer not in moves:
            yield Finding("allocation without move", consumer, f"on {join_sorted(held.providers)}")


def _on_the_wrong_host(facts: Facts) -> Iterator[Finding]:
    for server in facts.idle_servers():
        found = facts.allocations.get(server.id)
        where = {server.hypervisor_hostname} if server.hypervisor_hostname else set()
        if found is not None and found.amounts and found.nodes != where:
            detail = f"{server.label} is on {join_sorted(where) or 'no host'}, not {_node_names(found)}"
            yield Finding("allocation on the wrong host", server.id, detail)


def _wrong_amounts(facts: Facts) -> Iterator[Finding]:
    """A server's allocations, summed over all providers, must equal what its flavor and image require."""
    for server in facts.idle_servers():
        found = facts.allocations.get(server.id)
        amounts = found.amounts if found else Counter[str]()
        if server.hypervisor_hostname is None or (server.vm_state == ERROR and not amounts):
            continue
        try:
            wanted = _needs(server.flavor, server)
        except ValueError as error:
            yield Finding("server's needs cannot be read", server.id, f"{server.label}: {error}")
            continue
        if amounts == wanted:
            continue
        if not amounts:
            detail = f"{server.label} on {server.hypervisor_hostname}"
            yield Finding("server without allocation", server.id, detail)
        else:
            detail = f"{server.label} holds {format_amounts(amounts)} and needs {format_amounts(wanted)}"
            yield Finding("allocation differs from needs", server.id, detail)


def _held_for_resizes(facts: Facts) -> Iterator[Finding]:
    """Until it is confirmed or reverted, a resize holds the allocation that a revert needs."""
    for server in facts.idle_servers():
        move = facts.unconfirmed_resizes.get(server.id)
        if move is None:
            continue
        held = facts.allocations.get(move.operation_id) or ConsumerAllocations(None, Counter(), set(), set())
        wanted = _needs(move.old_flavor, server)
        if held.amounts != wanted or held.nodes != {move.source_node}:
            keeps = f"{format_amounts(held.amounts)} on {_node_names(held) or 'no host'}"
            needed = f"{format_amounts(wanted)} on {move.source_node}"
            detail = f"the resize of {server.label} keeps {keeps}, and {needed} is needed to revert it"
            yield Finding("resize cannot be reverted", server.id, detail)


def _wrong_usage(facts: Facts) -> Iterator[Finding]:
    """The counted cores and RAM must equal the flavor's."""
    for server in facts.idle_servers():
        flavor, counts = server.flavor, (server.vcpus, server.ram)
        if counts != (flavor.vcpus, flavor.ram):
            counted = f"{server.vcpus} cores and {server.ram} MiB"
            detail = f"{server.label} counts as {counted}, and has {flavor.vcpus} and {flavor.ram}"
            yield Finding("quota counts wrongly", server.id, detail)


def _needs(flavor: Flavor, server: CheckedServer) -> Counter[str]:
    request = host_requirements(flavor, server.image_properties, root_disk=server.image_id is not None)
    wanted = Counter({name: amount for name, amount in request["resources"].items() if amount})
    for group in request["groups"].values():
        wanted.update(group.resources)
    return wanted


def _node_names(held: ConsumerAllocations) -> str:
    return join_sorted(held.nodes or held.providers)
