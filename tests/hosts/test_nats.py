"""The NATS transport with a real NATS server: commands, reports, reconnects and permissions."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.config import Messaging
from kilonova.hosts import messages
from kilonova.hosts import nats as module
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import NoAnswer
from kilonova.hosts.journal import Journal
from kilonova.hosts.messages import Command, GuestState, Report
from kilonova.hosts.messages.verbs import GetConsoleLog, ListGuests, PowerOn, Reboot, Spawn
from kilonova.hosts.nats import (
    MessageTooLong,
    NatsAgent,
    NatsTransport,
    PartAssembler,
    SettingError,
    split_message,
    subject_token,
)
from kilonova.hosts.transport import HostRefused, HostUnreachable, StaleEpoch, list_guests
from tests.hosts.support import HeldDriver, command, guest, spawn, until
from tests.support import run
from tests.support.certificates import Authority
from tests.support.nats_server import NatsServer
from tests.support.nats_server import nats as nats

PREFIX = "cloud"


class Driver(HeldDriver):
    console = b"TICK\n"
    is_cut_off = False

    async def get_console_log(self, guest_id: str, lines: int | None) -> bytes:
        return self.console

    async def list_guests(self) -> list[GuestState]:
        if self.is_cut_off:
            raise NoAnswer("down")
        return await super().list_guests()


def settings(nats: NatsServer, **more: str) -> Messaging:
    return Messaging(url=nats.url, prefix=PREFIX, **more)


@asynccontextmanager
async def connected_agent(
    messaging: Messaging, host: str, driver: HeldDriver, directory: Path
) -> AsyncIterator[NatsAgent]:
    journal = Journal(directory / f"{subject_token(host)}.db")
    agent = NatsAgent(messaging, Agent(host, driver, journal))
    running = asyncio.create_task(agent.run())
    assert await agent.connection.wait_connected(60)
    try:
        yield agent
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await agent.close()
        journal.close()


@asynccontextmanager
async def connected_transport(
    messaging: Messaging, reports: list[Report] | None = None
) -> AsyncIterator[NatsTransport]:
    transport = NatsTransport(messaging, None if reports is None else reports.append, timeout=60)
    running = asyncio.create_task(transport.run())
    assert await transport.connection.wait_connected(60)
    try:
        yield transport
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def command_for(host: str, verb: Any, **more: Any) -> Command:
    return command(verb, host=host, **more)


@pytest.mark.parametrize("host", ["node-1", "node.example.org", "a b*>", "knoten-ä"])
def test_answers_errors_and_reports_are_delivered(nats: NatsServer, tmp_path: Path, host: str) -> None:
    async def scenario() -> None:
        reports: list[Report] = []
        async with (
            connected_transport(settings(nats), reports) as transport,
            connected_agent(settings(nats), host, Driver(), tmp_path) as agent,
        ):
            state = await transport.call(host, spawn(host=host, epoch=2))
            assert isinstance(state, GuestState)
            assert await list_guests(transport, host) == [state]
            with pytest.raises(HostRefused, match="no guest guest-9") as failed:
                await transport.call(host, command_for(host, Reboot(guest_id="guest-9"), operation="op-2"))
            assert failed.value.kind == "missing guest"
            with pytest.raises(StaleEpoch):
                await transport.call(host, spawn(host=host, epoch=1))
            assert await agent.report(Report(host=host, boot="b", guests=[state]))
            await until(_is_filled(reports))
            assert reports == [Report(host=host, boot="b", guests=[state])]

    run(scenario())


def _is_filled(found: list[Any]) -> Any:
    async def filled() -> bool:
        return bool(found)

    return filled


def test_connection_is_ready_only_after_subscribing() -> None:
    """Otherwise the first command would get no responders."""

    async def scenario() -> None:
        said: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.9.0","max_payload":1048576,"headers":true}\r\n')
            while line := await reader.readline():
                said.append(line.split()[0])
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = module.NatsConnection(
                Messaging(url=f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"), "a"
            )
            for subject in "ab":
                connection.subscribe(subject, lambda _: None)
            running = asyncio.create_task(connection.run())
            assert await connection.wait_connected(60)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert said[:5] == [b"CONNECT", b"PING", b"SUB", b"SUB", b"PING"]

    run(scenario())


def test_subject_tokens_are_valid_and_unique() -> None:
    names = ["a.b", "a_b", "a_2Eb", "a b", "a*b", "a>b", "aäb", "a-b", "A-b", "."]
    tokens = [subject_token(name) for name in names]
    assert len(set(tokens)) == len(names)
    assert all(set(one).isdisjoint(" .*>\t\r\n") and one.isascii() for one in tokens)


def test_host_without_agent_is_unreachable_at_once(nats: NatsServer) -> None:
    async def scenario() -> None:
        async with connected_transport(settings(nats)) as transport:
            # The broker reports missing responders, so this is not the timeout.
            with pytest.raises(HostUnreachable, match="no agent is connected"):
                await list_guests(transport, "nobody", timeout=60)

    run(scenario())


def test_host_that_does_not_answer_is_unreachable_after_timeout(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        driver.is_cut_off = True
        async with (
            connected_transport(settings(nats)) as transport,
            connected_agent(settings(nats), "a", driver, tmp_path),
        ):
            with pytest.raises(HostUnreachable, match=r"no answer within 0\.1 s"):
                await list_guests(transport, "a", timeout=0.1)

    run(scenario())


def test_long_command_does_not_delay_others(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        gate = driver.hold("spawn")
        async with (
            connected_transport(settings(nats)) as transport,
            connected_agent(settings(nats), "a", driver, tmp_path),
        ):
            spawning = asyncio.create_task(transport.call("a", spawn(host="a")))
            assert await list_guests(transport, "a") == []
            gate.set()
            assert (await spawning).power == "running"

    run(scenario())


def test_long_messages_are_split_and_reassembled(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        driver.console = b"".join(b"TICK %d\n" % number for number in range(300_000))
        long = guest("guest-1", user_data=b"x" * 2_500_000)
        async with (
            connected_transport(settings(nats)) as transport,
            connected_agent(settings(nats), "a", driver, tmp_path),
        ):
            assert await transport.call("a", Command(host="a", verb=GetConsoleLog(guest_id="g"))) == driver.console
            assert (await transport.call("a", command_for("a", Spawn(guest=long)))).id == "guest-1"

    run(scenario())


def test_too_long_message_fails_with_advice(tmp_path: Path) -> None:
    async def scenario(nats: NatsServer) -> None:
        driver = Driver()
        driver.console = b"x" * 1_000_000
        async with (
            connected_transport(settings(nats)) as transport,
            connected_agent(settings(nats), "a", driver, tmp_path),
        ):
            with pytest.raises(HostRefused, match="raise its max_payload, now 8192"):
                await transport.call("a", Command(host="a", verb=GetConsoleLog(guest_id="g")))

    with NatsServer(tmp_path, "max_payload: 8192") as nats:
        run(scenario(nats))


def test_lost_or_reordered_parts_are_discarded() -> None:
    data = bytes(range(256)) * 40
    sent = list(split_message(data, 1024 + 4000))
    assert len(sent) == 3
    assembler = PartAssembler()
    assert [assembler.join(*part) for part in sent] == [None, None, data]
    assert [assembler.join(*part) for part in (sent[0], sent[2], sent[1])] == [None, None, None]
    other = list(split_message(data[::-1], 1024 + 4000))
    mixed = [part for pair in zip(sent, other, strict=True) for part in pair]
    assert [found for found in (assembler.join(*part) for part in mixed) if found] == [data, data[::-1]]
    assert assembler.join(b"", {module.PART_HEADER: "rubbish"}) is None
    with pytest.raises(MessageTooLong):
        list(split_message(data, 1024))


def test_incomplete_messages_are_limited() -> None:
    assembler = PartAssembler()
    for number in ("0", "-1", "65"):
        for index in range(3):
            assert assembler.join(b"x", {module.PART_HEADER: f"endless/{index}/{number}"}) is None
            assert not assembler.held, "the number of parts is invalid"
    for sender in range(100):
        for index in range(63):
            assembler.join(b"x", {module.PART_HEADER: f"{sender}/{index}/64"})
    assert 0 < assembler.held <= 1024
    assert assembler.join(b"x", {module.PART_HEADER: "99/63/64"}) == b"x" * 64, "the newest parts are kept"


def test_lost_broker_fails_pending_calls_and_all_reconnect(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        gate = driver.hold("spawn")
        async with (
            connected_transport(settings(nats)) as transport,
            connected_agent(settings(nats), "a", driver, tmp_path) as agent,
        ):
            spawning = asyncio.create_task(transport.call("a", spawn(host="a")))
            await until(_is_filled(driver.calls))
            nats.stop()
            with pytest.raises(HostUnreachable, match="connection to the NATS server broke"):
                await spawning
            with pytest.raises(HostUnreachable, match="no connection to the NATS server"):
                await list_guests(transport, "a", timeout=60)
            assert not await agent.report(Report(host="a"))
            gate.set()
            nats.start()
            assert await agent.connection.wait_connected(60)
            assert await transport.connection.wait_connected(60)
            assert (await transport.call("a", spawn(host="a"))).power == "running"
            assert driver.calls == ["spawn"], "the spawn completed meanwhile, and the journal answered the repeat"

    run(scenario())


def test_agent_restart_fails_pending_calls_of_its_host(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        driver.hold("spawn")
        async with (
            connected_transport(settings(nats)) as transport,
            connected_agent(settings(nats), "a", driver, tmp_path),
        ):
            spawning = asyncio.create_task(transport.call("a", spawn(host="a")))
            await until(_is_filled(driver.calls))
            transport.agent_restarted("b")
            transport.agent_restarted("a")
            with pytest.raises(HostUnreachable, match="restarted"):
                await spawning

    run(scenario())


# Permissions, as in docs/agents.md.

PERMISSIONS = """
authorization {
  users = [
    { user: control, password: secret-c, permissions: {
        publish: "cloud.host.>", subscribe: ["cloud.report.>", "_INBOX.cloud.>"] } }
    { user: a, password: secret-a, permissions: {
        publish: "cloud.report.a", subscribe: "cloud.host.a", allow_responses: { max: 64, expires: "15m" } } }
    { user: b, password: secret-b, permissions: {
        publish: "cloud.report.b", subscribe: "cloud.host.b", allow_responses: { max: 64, expires: "15m" } } }
  ]
}
"""


def test_host_credential_is_limited_to_its_own_subjects(tmp_path: Path) -> None:
    async def scenario(nats: NatsServer) -> None:
        reports: list[Report] = []
        control = settings(nats, user="control", password="secret-c")
        a, b = (settings(nats, user=name, password=f"secret-{name}") for name in "ab")
        driver = Driver()
        driver.console = b"x" * 3_000_000
        async with (
            connected_transport(control, reports) as transport,
            connected_agent(a, "a", driver, tmp_path) as good,
            connected_agent(b, "a", Driver(), tmp_path / "..") as eavesdropper,
        ):
            assert await transport.call("a", Command(host="a", verb=GetConsoleLog(guest_id="g"))) == driver.console
            assert (await transport.call("a", spawn(host="a"))).power == "running"
            assert eavesdropper._agent.busy is False
            assert await list_guests(transport, "a") == await driver.list_guests()
            # b reports as a, on the subject of a and then on its own.
            await eavesdropper.report(Report(host="a", boot="forged"))
            await eavesdropper.connection.publish(
                f"{PREFIX}.report.b", messages.encode(Report(host="a", boot="forged"))
            )
            # b sends a command to a.
            forged = messages.encode(command_for("a", PowerOn(guest_id="guest-1"), operation="forged"))
            await eavesdropper.connection.publish(f"{PREFIX}.host.a", forged, reply="_INBOX.cloud.x.y")
            await good.report(Report(host="a", boot="real"))
            await until(_is_filled(reports))
            await asyncio.sleep(0.2)
            assert [report.boot for report in reports] == ["real"]
            assert "power_on" not in driver.calls

    with NatsServer(tmp_path, PERMISSIONS) as nats:
        run(scenario(nats))


def test_wrong_password_is_logged_once_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(nats: NatsServer) -> None:
        monkeypatch.setattr(module, "RECONNECT_PAUSE_SECONDS", 0.05)
        monkeypatch.setattr(module, "CONNECTION_WAIT_SECONDS", 0.2)
        transport = NatsTransport(settings(nats, user="control", password="guessed"))

        async def refused() -> bool:
            return "Authorization" in transport.connection.last_error

        running = asyncio.create_task(transport.run())
        await until(refused)
        assert not await transport.connection.wait_connected(0.5)
        with pytest.raises(HostUnreachable, match="Authorization"):
            await list_guests(transport, "a", timeout=60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        warnings = [record for record in caplog.records if "no connection" in record.message]
        assert len(warnings) == 1, "the same error is logged once"
        assert "guessed" not in caplog.text

    with NatsServer(tmp_path, PERMISSIONS) as nats:
        run(scenario(nats))


@pytest.mark.parametrize("password", ["secret-c", "guessed"], ids=["right", "wrong"])
def test_run_ends_when_cancelled_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """The library swallows some cancellations while it opens or closes a connection."""

    async def scenario(nats: NatsServer) -> None:
        monkeypatch.setattr(module, "RECONNECT_PAUSE_SECONDS", 0.0)
        for attempt in range(200):
            running = asyncio.create_task(NatsTransport(settings(nats, user="control", password=password)).run())
            await asyncio.sleep(attempt / 200 * 0.02)
            running.cancel()
            await asyncio.wait([running], timeout=60)
            assert running.cancelled(), attempt

    with NatsServer(tmp_path, PERMISSIONS) as nats:
        run(scenario(nats))


# TLS


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    _certificates(tmp_path)
    tls = f"""tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key",
        ca_file: "{tmp_path}/ca.pem", verify: true }}"""

    async def scenario(nats: NatsServer) -> None:
        files = {"ca_file": f"{tmp_path}/ca.pem", "cert_file": f"{tmp_path}/client.pem"}
        messaging = settings(nats, **files, key_file=f"{tmp_path}/client.key")
        async with connected_transport(messaging) as transport, connected_agent(messaging, "a", Driver(), tmp_path):
            assert await transport.call("a", Command(host="a", verb=ListGuests())) == []
        stranger = NatsTransport(settings(nats, ca_file=f"{tmp_path}/ca.pem"))
        running = asyncio.create_task(stranger.run())
        assert not await stranger.connection.wait_connected(0.5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with NatsServer(tmp_path, tls) as nats:
        run(scenario(nats))


@pytest.mark.parametrize("scheme, file", [("nats", "ca-cert.pem"), ("tls", "")])
def test_server_without_tls_gets_no_password(tmp_path: Path, scheme: str, file: str) -> None:
    """Somebody on the wire may claim that the server needs no TLS."""
    ca_file = str(Authority().issue(tmp_path, "127.0.0.1") / file) if file else ""
    info = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"tls_required":false}\r\n'
    received: list[bytes] = []

    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(info)
            received.append(await reader.read())
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            messaging = Messaging(url=f"{scheme}://127.0.0.1:{port}", user="me", password="hush", ca_file=ca_file)
            transport = NatsTransport(messaging)
            running = asyncio.create_task(transport.run())

            async def is_refused() -> bool:
                return bool(received) and "does not require TLS" in transport.connection.last_error

            await until(is_refused)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(scenario())
    assert received[0] == b""


def test_missing_certificates_raise_setting_error(nats: NatsServer) -> None:
    async def scenario() -> None:
        with pytest.raises(SettingError, match="certificates cannot be read"):
            NatsTransport(settings(nats, ca_file="/nowhere/ca.pem"))

    run(scenario())


def _certificates(directory: Path) -> None:
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test ca")])

    def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey, is_ca: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        )
        return builder.sign(ca_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    (directory / "ca.pem").write_bytes(certificate(ca_name, ca_key, True).public_bytes(pem))
    for role in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
        (directory / f"{role}.pem").write_bytes(certificate(name, key, False).public_bytes(pem))
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (directory / f"{role}.key").write_bytes(private)
