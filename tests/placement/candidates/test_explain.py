"""Explanations why a tree cannot serve a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from kilonova.placement.candidates.explain import find_unmet_requirement
from kilonova.placement.candidates.model import InventoryUsage, Provider, RequestGroup, ResourceRequest
from kilonova.placement.candidates.search import allocation_requests

from .test_search import situations


def provider(uuid: str, parent: str | None = "host", traits: str = "", **inventories: InventoryUsage | int) -> Provider:
    held = {name: InventoryUsage(stock, 0) if isinstance(stock, int) else stock for name, stock in inventories.items()}
    return Provider(uuid, parent, "host", held, frozenset(traits.split()), frozenset({f"agg-{uuid}"}))


TREE = [
    provider("host", None, "FAST", VCPU=8, MEMORY_MB=4096),
    provider("gpu0", "host", "DXVA", VGPU=2),
    provider("gpu1", "host", VGPU=InventoryUsage(5, 3), FPGA=1),
    provider("nic", "host", "SRIOV"),
    provider("pf", "nic", "PHYSNET0", VF=4),
]


def group(required: str = "", **fields: Any) -> RequestGroup:
    resources = {name: amount for name, amount in fields.items() if name.isupper()}
    others = {name: value for name, value in fields.items() if not name.isupper()}
    traits = tuple(frozenset(word.split("|")) for word in required.split())
    return RequestGroup(resources=resources, required=traits, **others)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (ResourceRequest(groups={"": group(VCPU=1)}), ""),
        (ResourceRequest(groups={"": group(VCPU=9)}), "no provider of the tree has 9 VCPU (at most 8)"),
        (ResourceRequest(groups={"": group(DISK_GB=1)}), "no provider of the tree has 1 DISK_GB"),
        (
            ResourceRequest(groups={"": group(VCPU=1), "1": group(VGPU=3)}),
            "no provider of the tree has 3 VGPU (at most 2) for group 1",
        ),
        (ResourceRequest(groups={"1": group(VGPU=2, VF=1)}), "no single provider has 2 VGPU and 1 VF for group 1"),
        (ResourceRequest(groups={"1": group("DXVA", FPGA=1)}), "no provider with 1 FPGA has DXVA for group 1"),
        (
            ResourceRequest(groups={"1": group("DXVA|CUDA FAST", VGPU=1)}),
            "no provider with 1 VGPU has CUDA or DXVA and FAST for group 1",
        ),
        (
            ResourceRequest(groups={"": group(VCPU=1, forbidden=frozenset({"FAST"}))}),
            "no provider with 1 VCPU is without FAST",
        ),
        (
            ResourceRequest(groups={"1": group(VGPU=1, member_of=(frozenset({"agg-host"}),))}),
            "no provider with 1 VGPU is in the right aggregates for group 1",
        ),
        (
            ResourceRequest(groups={"": group(VCPU=1, in_tree="other")}),
            "no provider with 1 VCPU is in the tree of other",
        ),
        (ResourceRequest(groups={"": group("SLOW", VCPU=1)}), "no provider that could be used has SLOW"),
        (
            ResourceRequest(groups={"": group(VCPU=1)}, root_required=frozenset({"SLOW"})),
            "the root provider lacks SLOW",
        ),
        (
            ResourceRequest(groups={"": group(VCPU=1)}, root_forbidden=frozenset({"FAST"})),
            "the root provider has the forbidden FAST",
        ),
        (
            ResourceRequest(groups={"1": group(FPGA=1), "2": group(FPGA=1)}),
            "all groups together need 2 FPGA, more than there is",
        ),
        (
            ResourceRequest(groups={"1": group(VF=1), "2": group(VF=1)}, isolate=True),
            "groups 1 and 2 find no two different providers",
        ),
        (
            ResourceRequest(groups={"1": group(VF=1), "2": group("DXVA")}, same_subtree=(frozenset({"1", "2"}),)),
            "groups 1 and 2 find no common subtree",
        ),
        (
            ResourceRequest(groups={"1": group("DXVA", VGPU=1), "2": group(VGPU=2), "3": group(VGPU=1, FPGA=1)}),
            "each group finds a provider, but not all of them at once",
        ),
        (ResourceRequest(groups={"": group("SLOW"), "1": group(VF=1)}), "the root provider lacks SLOW"),
    ],
)
def test_unmet_requirement_message(wanted: ResourceRequest, message: str) -> None:
    assert find_unmet_requirement(wanted, TREE) == message


@settings(max_examples=80, deadline=None)
@given(situations())
def test_explanation_is_empty_only_if_there_is_a_candidate(
    situation: tuple[ResourceRequest, list[Provider], list[Provider]],
) -> None:
    message = find_unmet_requirement(*situation)
    assert (message == "") == (next(allocation_requests(*situation), None) is not None)
    assert message == find_unmet_requirement(*situation)
    assert len(message) < 120
