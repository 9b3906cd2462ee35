"""Messages between releases: what a reader does not know, and what nobody may read in a log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kilonova.hosts import messages
from kilonova.hosts.messages import (
    Command,
    Describe,
    Destroy,
    HostFacts,
    Inventory,
    NestedProvider,
    PowerOff,
    Reboot,
    SharingProvider,
    Spawn,
    Unreadable,
)
from tests.hosts.support import command, guest


def loose(message: Command) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(messages.encode(message))
    return fields


@pytest.mark.parametrize(
    "verb",
    [
        Spawn(guest=guest(user_data=b"\x00\xff", metadata={"role": "web"}, config_drive=True)),
        Destroy(guest_id="g"),
        PowerOff(guest_id="g"),
        Reboot(guest_id="g", hard=True),
    ],
)
def test_a_command_arrives_as_it_was_sent(verb: messages.Change) -> None:
    sent = command(verb, round=3, epoch=7)
    assert messages.decode_command(messages.encode(sent)) == sent


def test_fields_of_a_newer_release_are_ignored() -> None:
    fields = loose(command(Spawn(guest=guest("g"))))
    fields["colour"] = "blue"
    fields["verb"]["guest"]["tpm"] = {"version": "2.0"}
    assert messages.decode_command(msgspec.msgpack.encode(fields)) == command(Spawn(guest=guest("g")))


def test_the_version_is_always_on_the_wire() -> None:
    assert loose(command(Destroy(guest_id="g")))["version"] == messages.VERSION


def test_a_verb_of_a_newer_release_is_refused_by_name() -> None:
    fields = loose(command(Destroy(guest_id="g"))) | {"verb": {"type": "teleport"}, "version": 9}
    with pytest.raises(Unreadable) as refused:
        messages.decode_command(msgspec.msgpack.encode(fields))
    assert refused.value.error.kind == "unsupported"
    assert "'teleport' of protocol version 9" in refused.value.error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xff",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"verb": 1}),
        msgspec.msgpack.encode({"host": "h", "verb": {"type": "spawn"}}),
    ],
)
def test_rubbish_is_malformed(data: bytes) -> None:
    with pytest.raises(Unreadable) as refused:
        messages.decode_command(data)
    assert refused.value.error.kind == "malformed"


def test_no_secret_in_a_repr() -> None:
    secret = "correct horse battery staple"
    sent = command(Spawn(guest=guest(user_data=secret.encode(), metadata={"password": secret})))
    assert secret not in repr(sent)
    assert secret not in str(sent.verb)


def described(fields: dict[str, Any]) -> HostFacts:
    """What the control plane makes of an agent's answer to Describe."""
    reply = messages.Reply(ok=True, result=msgspec.Raw(msgspec.msgpack.encode(fields)))
    facts: HostFacts = messages.decode_answer(Describe(), messages.decode_reply(messages.encode(reply)))
    return facts


OLD_FACTS = {
    "host": "cn",
    "hypervisor_hostname": "cn",
    "hypervisor_type": "QEMU",
    "hypervisor_version": 1,
    "host_ip": "192.0.2.1",
    "cpu_info": {},
    "inventory": {"VCPU": {"total": 4, "max_unit": 4}},
    "traits": ["COMPUTE_NODE"],
    "agent_version": 1,
}


def test_an_agent_of_the_first_version_is_a_host_of_one_provider() -> None:
    facts = described(OLD_FACTS)
    assert (facts.nested, facts.sharing, facts.booted_at, facts.agent_version) == ([], [], None, 1)
    assert facts.inventory["VCPU"] == Inventory(total=4, max_unit=4)


def test_parts_and_shares_of_a_host_arrive_as_told() -> None:
    told = HostFacts(
        **msgspec.structs.asdict(described(OLD_FACTS))
        | {
            "nested": [NestedProvider(name="NUMA0", inventory={"VCPU": Inventory(total=4, max_unit=4)}, traits=["A"])],
            "sharing": [SharingProvider(name="san", aggregate="uuid")],
            "booted_at": 1000.5,
        }
    )
    fields = msgspec.msgpack.decode(messages.encode(told))
    assert described(fields) == told
    fields["nested"][0]["colour"] = "blue"
    assert described(fields) == told, "a newer release may say more"
    assert set(OLD_FACTS) <= set(fields), "an older control plane finds all it knows"
