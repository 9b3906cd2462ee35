"""A compromised host with all that one host has: its NATS user, the commands it gets, its tickets, its journal.

What it may do to the disk servers of other hosts is in `libvirt/test_disk_transfer.py`, what it may report in
`test_registry.py` and `tests/compute/test_power_state_sync.py`.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nats as nats_library
import pytest

from kilonova.config import Messaging
from kilonova.hosts import messages
from kilonova.hosts.messages import Command, Report
from kilonova.hosts.messages.verbs import Answer, CheckMigrationSource, Park, PowerOff, PrepareMigration, Receive, Verb
from kilonova.hosts.transport import Transport, list_guests
from kilonova.http.api import Route
from kilonova.tickets import HEADER
from tests.compute.servers.moves import HOST, run_move
from tests.compute.servers.support import act
from tests.hosts.support import command, spawn, until
from tests.hosts.test_nats import Driver, connected_agent, connected_transport
from tests.support import run
from tests.support.cloud import DEMO, TOKENS, Identity
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.nats_server import NatsServer
from tests.support.tickets import transfer_for

DOCUMENT = Path(__file__).parents[2] / "docs" / "agents.md"
ATTACKER, VICTIM = "host-1", "host-2"


# NATS, with the permissions of the documentation


def documented_permissions() -> str:
    """The `authorization` of docs/agents.md, for two hosts. Each password is the user's name."""
    found = re.search(r"^authorization \{.*?^\}", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    users = re.split(r"(?=\n    \{ user: )", found[0])
    (host,) = [user for user in users if "user: host-1" in user]
    entry = host.partition("\n  ]")[0]
    text = found[0].replace(entry, entry + entry.replace(ATTACKER, VICTIM))
    return re.sub(r'user: ([\w-]+), password: "…"', r'user: \1, password: "\1"', text)


def settings(server: NatsServer, user: str) -> Messaging:
    return Messaging(url=server.url, user=user, password=user)


FORBIDDEN_TO_PUBLISH = (
    *(f"kilonova.host.{name}" for name in (VICTIM, ATTACKER, "control", "*", ">", f"{VICTIM}.x")),
    *(f"kilonova.report.{name}" for name in (VICTIM, f"{ATTACKER}.x", "*", ">")),
    *("kilonova.report", "other.report.host-1", "_INBOX.kilonova.x.y", "_INBOX.x", ">", "$SYS.REQ.SERVER.PING"),
    *("$JS.API.STREAM.CREATE.s", "_R_.x"),
)
FORBIDDEN_TO_SUBSCRIBE = (
    *(f"kilonova.host.{name}" for name in (VICTIM, "*", ">", f"{ATTACKER}.>", f"{VICTIM}.*")),
    *(f"kilonova.report.{name}" for name in (VICTIM, ATTACKER, "*", ">")),
    *("kilonova.>", "kilonova.*.*", "*.host.host-2", ">", "*.*.*", "_INBOX.>", "_INBOX.kilonova.>", "_INBOX.*.*.*"),
    *("$SYS.>", "$JS.>"),
)


def test_host_reaches_no_subject_but_its_own(tmp_path: Path) -> None:
    async def scenario(server: NatsServer) -> None:
        reports: list[Report] = []
        driver, received, errors = Driver(), [], []

        async def on_message(message: Any) -> None:
            received.append(message)

        async def on_error(error: Exception) -> None:
            errors.append(str(error).lower())

        async with (
            connected_transport(settings(server, "control"), reports) as transport,
            connected_agent(settings(server, VICTIM), VICTIM, driver, tmp_path) as victim,
        ):
            attacker = await nats_library.connect(
                server.url, user=ATTACKER, password=ATTACKER, error_cb=on_error, allow_reconnect=False
            )
            await attacker.subscribe(f"kilonova.host.{ATTACKER}", cb=on_message)
            for subject in FORBIDDEN_TO_SUBSCRIBE:
                await attacker.subscribe(subject, cb=on_message)
                await attacker.subscribe(subject, "queue", cb=on_message)
            forged_command = messages.encode(command(PowerOff(guest_id="guest-1"), host=VICTIM, operation="forged"))
            forged_report = messages.encode(Report(host=VICTIM, boot="forged"))
            for subject in FORBIDDEN_TO_PUBLISH:
                for data in (forged_command, forged_report):
                    await attacker.publish(subject, data, reply=f"kilonova.host.{VICTIM}")
            # On its own subject it names the other host, and another host's subject as the one to reply to.
            await attacker.publish(f"kilonova.report.{ATTACKER}", forged_report, reply=f"kilonova.host.{VICTIM}")
            await flush(attacker)

            # A command to the attacker allows it one inbox, not those of commands to others.
            asked = asyncio.create_task(list_guests(transport, ATTACKER, timeout=60))
            await until(_is_filled(received))
            inbox = received[0].reply
            await attacker.publish(f"{inbox}x", b"forged")
            await attacker.publish(inbox.rpartition(".")[0] + ".*", b"forged")
            await attacker.publish(inbox, messages.encode(messages.success([])))
            assert await asked == []

            spawned = spawn(host=VICTIM)
            await transport.call(VICTIM, spawned)
            assert [state.id for state in await list_guests(transport, VICTIM)] == ["guest-1"]
            # A connection that is being established again sends no report.
            await until(lambda: victim.report(Report(host=VICTIM, boot="real")))
            await until(_is_filled(reports))
            await flush(attacker)
            await until(_is_true(lambda: len(refused(errors, "publish")) >= 2 * len(FORBIDDEN_TO_PUBLISH) + 2))
            assert driver.calls == ["spawn"], "no forged command was executed"
            assert [report.boot for report in reports] == ["real"]
            assert [message.subject for message in received] == [f"kilonova.host.{ATTACKER}"]
            assert len(refused(errors, "subscription")) == 2 * len(FORBIDDEN_TO_SUBSCRIBE)
            await attacker.close()

    with NatsServer(tmp_path, documented_permissions()) as server:
        run(scenario(server))


async def flush(client: Any) -> None:
    """Wait until the server has read everything. The library's ping overtakes what is still queued."""
    while client.pending_data_size:
        await asyncio.sleep(0)
    await client.flush()


def refused(errors: list[str], kind: str) -> list[str]:
    return [error for error in errors if f"permissions violation for {kind}" in error]


def _is_filled(found: list[Any]) -> Any:
    return _is_true(lambda: bool(found))


def _is_true(condition: Any) -> Any:
    async def check() -> bool:
        return bool(condition())

    return check


# The APIs


def paths_of(c: FullCloud, ids: Mapping[str, str]) -> list[tuple[Route, str]]:
    """All routes, with paths of existing objects where their kind is known."""
    found = []
    for api in c.app.apis.values():
        root = f"{api.prefix}/{api.roots[0]}" if api.roots else api.prefix
        for route in api.routes.values():
            path = re.sub(r"\{(\w+)\}", lambda name: quote(ids.get(name[1], name[1])), route.path)
            found.append((route, root + path))
    return found


def test_tickets_open_no_route_but_their_own(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            read, write = [(await transfer_for(c, c.image_id, method)).ticket for method in ("GET", "PUT")]
            ids = {"server_id": server["id"], "id": server["id"], "image_id": c.image_id}
            routes = [found for found in paths_of(c, ids) if found[0].needs_token]
            assert len(routes) > 400
            for route, path in routes:
                headers = {HEADER: write, "X-Auth-Token": read}
                answer = await c.request(route.method, path, as_=None, root="", headers=headers)
                assert answer.status == 401, (route.key, answer.status)
            own = {route.key for route, _ in paths_of(c, ids) if route.ticket}
            assert len(own) == 3

    run(scenario())


# What hosts are sent


class Recorder:
    """Records the commands that the control plane sends, and holds one kind of them."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.sent: list[tuple[str, Verb[object], bytes]] = []

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        self.sent.append((host, command.verb, messages.encode(command)))
        return await self._inner.call(host, command, timeout=timeout)

    def moves(self) -> dict[str, set[tuple[str, str, str]]]:
        """Host, guest and operation of the commands with each move ticket."""
        found: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
        for host, verb, _ in self.sent:
            if isinstance(verb, Park | Receive | CheckMigrationSource | PrepareMigration) and verb.ticket is not None:
                found[verb.ticket.key].add((host, verb.guest_id, verb.slot))
        return found

    def tickets(self) -> list[str]:
        transfers = [getattr(verb, "data", None) for _, verb, _ in self.sent]
        return [transfer.ticket for transfer in transfers if transfer is not None]


def test_hosts_get_no_token_and_no_secret_of_servers_on_other_hosts(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = f"token-{secrets.token_hex(16)}"

    async def service_token(self: Identity) -> str:
        return token

    monkeypatch.setitem(TOKENS, token, TOKENS["kilonova"])
    monkeypatch.setattr(Identity, "token", service_token)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=3, compute__shelved_offload_seconds=-1) as c:
            recorder = Recorder(c.services.hosts)
            c.services.hosts = recorder
            world = SecretServers(c)
            for _ in range(3):
                await world.boot()
            first, second, third = world.hosts_of
            for server_id in world.hosts_of:
                await world.rescue(server_id)
            await world.change_password(first)
            assert (await act(c, first, "createImage", {"name": "copy"}, version="2.96")).status == 202
            await world.settle(first)
            backup = {"name": "backup", "backup_type": "daily", "rotation": 1}
            await world.run(first, "createBackup", backup)
            await world.run(first, "rebuild", {"imageRef": c.image_id})
            await world.run(first, "shelve", None)
            await world.run(first, "shelveOffload", None)
            await world.run(first, "unshelve", None)
            await world.run(second, "os-migrateLive", {"host": None, "block_migration": "auto"})
            await world.run(third, "migrate", None)
            assert (await act(c, third, "confirmResize", None, version="2.96")).status == 204
            await world.settle(third)
            sent = [(host, data) for host, _, data in recorder.sent]
            assert {host for host, _ in sent} == {"sim-001", "sim-002", "sim-003"}
            assert len(recorder.tickets()) > 10, "boots, rescues, a rebuild, snapshots"
            journals = b"".join(path.read_bytes() for path in Path(c.services.config.data).glob("agents.db*"))
            for text in (token, f"admin@{DEMO}", '"kilonova"'):
                assert not [host for host, data in sent if text.encode() in data], text
                assert text.encode() not in journals
            for server_id, values in world.secrets_of.items():
                for value in values:
                    holders = {host for host, data in sent if value.encode() in data}
                    assert holders, "the host of the server gets it"
                    assert holders <= world.hosts_of[server_id], value
                    assert value.encode() not in journals
            # Only the two hosts of a move get its ticket, which is for one guest and one operation.
            assert len(recorder.moves()) == 2
            for key, uses in recorder.moves().items():
                hosts, guests, operations = map(set, zip(*uses, strict=True))
                ((guest_id,), (_,)) = guests, operations
                assert guest_id in (second, third)
                assert hosts == world.hosts_of[guest_id]
                assert len(hosts) == 2
                assert [host for host, data in sent if key.encode() in data and host not in hosts] == []
                assert key.encode() not in journals
            # The operations have ended, so what a host has kept of them is of no use.
            for ticket in recorder.tickets():
                assert ticket.encode() not in journals
                for image_id in await image_ids(c):
                    for method in ("GET", "PUT"):
                        path = f"/image/kilonova/v1/images/{image_id}/file"
                        answer = await c.request(
                            method, path, as_=None, root="", headers={HEADER: ticket}, content=b"forged"
                        )
                        assert answer.status == 403

    run(scenario())


async def image_ids(c: FullCloud) -> list[str]:
    return [image.id for image in await c.services.image.list("admin")]


class SecretServers:
    """Servers with secrets, and the hosts that each has been on."""

    def __init__(self, c: FullCloud) -> None:
        self.cloud = c
        self.secrets_of: dict[str, list[str]] = {}
        self.hosts_of: dict[str, set[str]] = defaultdict(set)

    async def boot(self) -> None:
        user_data, metadata = secrets.token_hex(16), secrets.token_hex(16)
        server = await self.cloud.boot(
            user_data=base64.b64encode(user_data.encode()).decode(), metadata={"key": metadata}, config_drive=True
        )
        self.secrets_of[server["id"]] = [user_data, metadata]
        await self.settle(server["id"])

    async def settle(self, server_id: str) -> dict[str, Any]:
        shown = await self.cloud.wait_until_settled(server_id)
        assert shown["status"] != "ERROR", shown
        self.hosts_of[server_id] |= {shown[HOST]} - {None}
        return shown

    async def run(self, server_id: str, action: str, body: Any) -> None:
        await run_move(self.cloud, server_id, action, body, version="2.96")
        await self.settle(server_id)

    async def rescue(self, server_id: str) -> None:
        password = secrets.token_hex(16)
        self.secrets_of[server_id].append(password)
        await self.run(server_id, "rescue", {"adminPass": password})
        await self.run(server_id, "unrescue", None)

    async def change_password(self, server_id: str) -> None:
        password = secrets.token_hex(16)
        self.secrets_of[server_id].append(password)
        await self.run(server_id, "changePassword", {"adminPass": password})
