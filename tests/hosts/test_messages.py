"""Messages: compatibility between releases, and secrets in their repr."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kilonova.hosts import messages
from kilonova.hosts.messages import (
    Command,
    File,
    HostFacts,
    Inventory,
    MoveTicket,
    NestedProvider,
    SharingProvider,
    Transfer,
    UnreadableCommand,
)
from kilonova.hosts.messages.verbs import (
    Change,
    Describe,
    Destroy,
    Park,
    PowerOff,
    Reboot,
    Receive,
    Snapshot,
    Spawn,
)
from tests.hosts.support import command, guest


def to_fields(message: Command) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(messages.encode(message))
    return fields


@pytest.mark.parametrize(
    "verb",
    [
        Spawn(guest=guest(user_data=b"\x00\xff", metadata={"role": "web"}, config_drive=True)),
        Spawn(guest=guest(files=[File(path="/etc/motd", content=b"\x00\xff")])),
        Destroy(guest_id="g"),
        PowerOff(guest_id="g"),
        Reboot(guest_id="g", hard=True),
    ],
)
def test_command_survives_encoding(verb: Change) -> None:
    sent = command(verb, round=3, epoch=7)
    assert messages.decode_command(messages.encode(sent)) == sent


def test_unknown_fields_are_ignored() -> None:
    fields = to_fields(command(Spawn(guest=guest("g"))))
    fields["colour"] = "blue"
    fields["verb"]["guest"]["tpm"] = {"version": "2.0"}
    assert messages.decode_command(msgspec.msgpack.encode(fields)) == command(Spawn(guest=guest("g")))


def test_version_is_always_encoded() -> None:
    assert to_fields(command(Destroy(guest_id="g")))["version"] == messages.VERSION


def test_unknown_verb_is_refused_by_name() -> None:
    fields = to_fields(command(Destroy(guest_id="g"))) | {"verb": {"type": "teleport"}, "version": 9}
    with pytest.raises(UnreadableCommand) as refused:
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
def test_malformed_command_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableCommand) as refused:
        messages.decode_command(data)
    assert refused.value.error.kind == "malformed"


def test_repr_of_spawn_hides_secrets() -> None:
    secret = "correct horse battery staple"
    file = File(path="/etc/motd", content=secret.encode())
    sent = command(Spawn(guest=guest(user_data=secret.encode(), metadata={"password": secret}, files=[file])))
    assert secret not in repr(sent)
    assert secret not in repr(file)
    assert secret not in str(sent.verb)


def decode_facts(fields: dict[str, Any]) -> HostFacts:
    """Decode an agent's answer to Describe."""
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


def test_facts_of_version_1_have_one_provider() -> None:
    facts = decode_facts(OLD_FACTS)
    assert (facts.nested, facts.sharing, facts.booted_at, facts.agent_version) == ([], [], None, 1)
    assert facts.inventory["VCPU"] == Inventory(total=4, max_unit=4)


def test_nested_and_sharing_providers_survive_encoding() -> None:
    sent = HostFacts(
        **msgspec.structs.asdict(decode_facts(OLD_FACTS))
        | {
            "nested": [NestedProvider(name="NUMA0", inventory={"VCPU": Inventory(total=4, max_unit=4)}, traits=["A"])],
            "sharing": [SharingProvider(name="san", aggregate="uuid")],
            "booted_at": 1000.5,
        }
    )
    fields = msgspec.msgpack.decode(messages.encode(sent))
    assert decode_facts(fields) == sent
    fields["nested"][0]["colour"] = "blue"
    assert decode_facts(fields) == sent, "unknown fields are ignored"
    assert set(OLD_FACTS) <= set(fields), "an older control plane finds all its fields"


def test_older_agent_finds_the_ticket_where_it_expects_a_token() -> None:
    data = messages.encode(Snapshot(guest_id="g", data=Transfer(url="/kilonova/v1/images/1/file", ticket="t")))
    assert msgspec.msgpack.decode(data)["data"] == {"url": "/kilonova/v1/images/1/file", "token": "t"}


def test_move_of_an_older_control_plane_has_no_ticket() -> None:
    sent = msgspec.msgpack.encode({"type": "park", "guest_id": "g", "slot": "s"})
    assert msgspec.msgpack.decode(sent, type=Park) == Park(guest_id="g", slot="s", ticket=None)


def test_repr_hides_tickets() -> None:
    ticket = MoveTicket(key="secret")
    transfer = Transfer(url="/u", ticket="secret")
    for verb in (
        Park(guest_id="g", slot="s", ticket=ticket),
        Receive(guest=guest("g"), source="a", slot="s", start=True, ticket=ticket),
        Snapshot(guest_id="g", data=transfer),
        Spawn(guest=guest("g"), data=transfer),
    ):
        assert "secret" not in repr(verb)
