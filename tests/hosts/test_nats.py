"""Commands and reports by a real NATS server: what arrives, what does not, and who may send what."""

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
from kilonova.hosts.messages import Command, GuestState, ListGuests, LookConsole, PowerOn, Reboot, Report, Spawn
from kilonova.hosts.nats import Joiner, NatsAgent, NatsTransport, Setting, TooLong, parts, token
from kilonova.hosts.transport import HostFailed, HostUnreachable, StaleEpoch, list_guests
from tests.hosts.support import HeldDriver, command, guest, spawn, until
from tests.support import run
from tests.support.nats_server import NatsServer
from tests.support.nats_server import nats as nats

PREFIX = "cloud"


class Driver(HeldDriver):
    console = b"TICK\n"
    silent = False

    async def look_console(self, guest_id: str, lines: int | None) -> bytes:
        return self.console

    async def guests(self) -> list[GuestState]:
        if self.silent:
            raise NoAnswer("down")
        return await super().guests()


def settings(nats: NatsServer, **more: str) -> Messaging:
    return Messaging(url=nats.url, prefix=PREFIX, **more)


@asynccontextmanager
async def served(messaging: Messaging, host: str, driver: HeldDriver, directory: Path) -> AsyncIterator[NatsAgent]:
    journal = Journal(directory / f"{token(host)}.db")
    agent = NatsAgent(messaging, Agent(host, driver, journal))
    running = asyncio.create_task(agent.run())
    assert await agent.link.ready(60)
    try:
        yield agent
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await agent.close()
        journal.close()


@asynccontextmanager
async def controlling(messaging: Messaging, heard: list[Report] | None = None) -> AsyncIterator[NatsTransport]:
    transport = NatsTransport(messaging, None if heard is None else heard.append, timeout=60)
    running = asyncio.create_task(transport.run())
    assert await transport.link.ready(60)
    try:
        yield transport
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def ask(host: str, verb: Any, **more: Any) -> Command:
    return command(verb, host=host, **more)


@pytest.mark.parametrize("host", ["node-1", "node.example.org", "a b*>", "knoten-ä"])
def test_answers_refusals_and_reports_come_through(nats: NatsServer, tmp_path: Path, host: str) -> None:
    async def scenario() -> None:
        heard: list[Report] = []
        async with (
            controlling(settings(nats), heard) as reach,
            served(settings(nats), host, Driver(), tmp_path) as agent,
        ):
            state = await reach.call(host, spawn(host=host, epoch=2))
            assert isinstance(state, GuestState)
            assert await list_guests(reach, host) == [state]
            with pytest.raises(HostFailed, match="no guest guest-9") as failed:
                await reach.call(host, ask(host, Reboot(guest_id="guest-9"), operation="op-2"))
            assert failed.value.kind == "missing guest"
            with pytest.raises(StaleEpoch):
                await reach.call(host, spawn(host=host, epoch=1))
            assert await agent.report(Report(host=host, boot="b", guests=[state]))
            await until(_filled(heard))
            assert heard == [Report(host=host, boot="b", guests=[state])]

    run(scenario())


def _filled(found: list[Any]) -> Any:
    async def filled() -> bool:
        return bool(found)

    return filled


def test_who_is_connected_is_subscribed() -> None:
    """Or the first command would find nobody."""

    async def scenario() -> None:
        said: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.9.0","max_payload":1048576,"headers":true}\r\n')
            while line := await reader.readline():
                said.append(line.split()[0])
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            link = module.Link(Messaging(url=f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"), "a")
            for subject in "ab":
                link.subscribe(subject, lambda _: None)
            running = asyncio.create_task(link.run())
            assert await link.ready(60)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert said[:5] == [b"CONNECT", b"PING", b"SUB", b"SUB", b"PING"]

    run(scenario())


def test_names_of_hosts_are_one_token_each_and_never_the_same() -> None:
    names = ["a.b", "a_b", "a_2Eb", "a b", "a*b", "a>b", "aäb", "a-b", "A-b", "."]
    tokens = [token(name) for name in names]
    assert len(set(tokens)) == len(names)
    assert all(set(one).isdisjoint(" .*>\t\r\n") and one.isascii() for one in tokens)


def test_a_host_without_an_agent_is_unreachable_at_once(nats: NatsServer) -> None:
    async def scenario() -> None:
        async with controlling(settings(nats)) as reach:
            # Said by the broker, or it would be that no answer came in time.
            with pytest.raises(HostUnreachable, match="no agent is connected"):
                await list_guests(reach, "nobody", timeout=60)

    run(scenario())


def test_a_host_that_says_nothing_is_unreachable_after_the_time_given(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        driver.silent = True
        async with controlling(settings(nats)) as reach, served(settings(nats), "a", driver, tmp_path):
            with pytest.raises(HostUnreachable, match=r"no answer within 0\.1 s"):
                await list_guests(reach, "a", timeout=0.1)

    run(scenario())


def test_a_command_that_takes_long_keeps_no_other_waiting(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        gate = driver.hold("spawn")
        async with controlling(settings(nats)) as reach, served(settings(nats), "a", driver, tmp_path):
            spawning = asyncio.create_task(reach.call("a", spawn(host="a")))
            assert await list_guests(reach, "a") == []
            gate.set()
            assert (await spawning).power == "running"

    run(scenario())


def test_what_is_longer_than_a_message_comes_in_parts(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        driver.console = b"".join(b"TICK %d\n" % number for number in range(300_000))
        long = guest("guest-1", user_data=b"x" * 2_500_000)
        async with controlling(settings(nats)) as reach, served(settings(nats), "a", driver, tmp_path):
            assert await reach.call("a", Command(host="a", verb=LookConsole(guest_id="g"))) == driver.console
            assert (await reach.call("a", ask("a", Spawn(guest=long)))).id == "guest-1"

    run(scenario())


def test_what_is_too_long_says_so_and_what_to_do(tmp_path: Path) -> None:
    async def scenario(nats: NatsServer) -> None:
        driver = Driver()
        driver.console = b"x" * 1_000_000
        async with controlling(settings(nats)) as reach, served(settings(nats), "a", driver, tmp_path):
            with pytest.raises(HostFailed, match="raise its max_payload, now 8192"):
                await reach.call("a", Command(host="a", verb=LookConsole(guest_id="g")))

    with NatsServer(tmp_path, "max_payload: 8192") as nats:
        run(scenario(nats))


def test_parts_that_are_lost_or_mixed_up_make_no_message() -> None:
    data = bytes(range(256)) * 40
    sent = list(parts(data, 1024 + 4000))
    assert len(sent) == 3
    joiner = Joiner()
    assert [joiner.join(*part) for part in sent] == [None, None, data]
    assert [joiner.join(*part) for part in (sent[0], sent[2], sent[1])] == [None, None, None]
    other = list(parts(data[::-1], 1024 + 4000))
    mixed = [part for pair in zip(sent, other, strict=True) for part in pair]
    assert [found for found in (joiner.join(*part) for part in mixed) if found] == [data, data[::-1]]
    assert joiner.join(b"", {module.PART: "rubbish"}) is None
    with pytest.raises(TooLong):
        list(parts(data, 1024))


def test_what_senders_never_end_does_not_fill_the_memory() -> None:
    joiner = Joiner()
    for number in ("0", "-1", "65"):
        for index in range(3):
            assert joiner.join(b"x", {module.PART: f"endless/{index}/{number}"}) is None
            assert not joiner.held, "no message has so many parts"
    for sender in range(100):
        for index in range(63):
            joiner.join(b"x", {module.PART: f"{sender}/{index}/64"})
    assert 0 < joiner.held <= 1024
    assert joiner.join(b"x", {module.PART: "99/63/64"}) == b"x" * 64, "the newest are kept"


def test_who_waits_when_the_broker_goes_is_told_at_once_and_all_connect_again(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        gate = driver.hold("spawn")
        async with controlling(settings(nats)) as reach, served(settings(nats), "a", driver, tmp_path) as agent:
            spawning = asyncio.create_task(reach.call("a", spawn(host="a")))
            await until(_filled(driver.asked))
            nats.stop()
            with pytest.raises(HostUnreachable, match="connection to the NATS server broke"):
                await spawning
            with pytest.raises(HostUnreachable, match="no connection to the NATS server"):
                await list_guests(reach, "a", timeout=60)
            assert not await agent.report(Report(host="a"))
            gate.set()
            nats.start()
            assert await agent.link.ready(60)
            assert await reach.link.ready(60)
            assert (await reach.call("a", spawn(host="a"))).power == "running"
            assert driver.asked == ["spawn"], "it went on meanwhile, and the repeat was answered from the journal"

    run(scenario())


def test_who_waits_for_an_agent_that_was_started_anew_is_told(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = Driver()
        driver.hold("spawn")
        async with controlling(settings(nats)) as reach, served(settings(nats), "a", driver, tmp_path):
            spawning = asyncio.create_task(reach.call("a", spawn(host="a")))
            await until(_filled(driver.asked))
            reach.restarted("b")
            reach.restarted("a")
            with pytest.raises(HostUnreachable, match="started anew"):
                await spawning

    run(scenario())


# Who may do what. This is what docs/agents.md gives operators.

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


def test_a_hosts_credential_is_good_for_its_own_subjects_alone(tmp_path: Path) -> None:
    async def scenario(nats: NatsServer) -> None:
        heard: list[Report] = []
        control = settings(nats, user="control", password="secret-c")
        a, b = (settings(nats, user=name, password=f"secret-{name}") for name in "ab")
        driver = Driver()
        driver.console = b"x" * 3_000_000
        async with (
            controlling(control, heard) as reach,
            served(a, "a", driver, tmp_path) as good,
            served(b, "a", Driver(), tmp_path / "..") as eavesdropper,
        ):
            assert await reach.call("a", Command(host="a", verb=LookConsole(guest_id="g"))) == driver.console
            assert (await reach.call("a", spawn(host="a"))).power == "running"
            assert eavesdropper._agent.busy is False
            assert await list_guests(reach, "a") == await driver.guests()
            # b says that it is a, on a subject that is not its own, and then on its own.
            await eavesdropper.report(Report(host="a", boot="forged"))
            await eavesdropper.link.publish(f"{PREFIX}.report.b", messages.encode(Report(host="a", boot="forged")))
            # b commands a, and listens to what others are answered.
            forged = messages.encode(ask("a", PowerOn(guest_id="guest-1"), operation="forged"))
            await eavesdropper.link.publish(f"{PREFIX}.host.a", forged, reply="_INBOX.cloud.x.y")
            await good.report(Report(host="a", boot="real"))
            await until(_filled(heard))
            await asyncio.sleep(0.2)
            assert [report.boot for report in heard] == ["real"]
            assert "power_on" not in driver.asked

    with NatsServer(tmp_path, PERMISSIONS) as nats:
        run(scenario(nats))


def test_a_wrong_password_is_told_in_the_log_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(nats: NatsServer) -> None:
        monkeypatch.setattr(module, "PAUSE", 0.05)
        monkeypatch.setattr(module, "PATIENCE", 0.2)
        transport = NatsTransport(settings(nats, user="control", password="guessed"))

        async def refused() -> bool:
            return "Authorization" in transport.link.trouble

        running = asyncio.create_task(transport.run())
        await until(refused)
        assert not await transport.link.ready(0.5)
        with pytest.raises(HostUnreachable, match="Authorization"):
            await list_guests(transport, "a", timeout=60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        complaints = [record for record in caplog.records if "no connection" in record.message]
        assert len(complaints) == 1, "however often it was tried"
        assert "guessed" not in caplog.text

    with NatsServer(tmp_path, PERMISSIONS) as nats:
        run(scenario(nats))


@pytest.mark.parametrize("password", ["secret-c", "guessed"], ids=["right", "wrong"])
def test_it_ends_whenever_it_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """The library loses some of the cancels that come while it makes or gives up a connection."""

    async def scenario(nats: NatsServer) -> None:
        monkeypatch.setattr(module, "PAUSE", 0.0)
        for turn in range(200):
            running = asyncio.create_task(NatsTransport(settings(nats, user="control", password=password)).run())
            await asyncio.sleep(turn / 200 * 0.02)
            running.cancel()
            await asyncio.wait([running], timeout=60)
            assert running.cancelled(), turn

    with NatsServer(tmp_path, PERMISSIONS) as nats:
        run(scenario(nats))


# TLS


def test_both_sides_prove_who_they_are_by_certificates(tmp_path: Path) -> None:
    _certificates(tmp_path)
    tls = f"""tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key",
        ca_file: "{tmp_path}/ca.pem", verify: true }}"""

    async def scenario(nats: NatsServer) -> None:
        files = {"ca_file": f"{tmp_path}/ca.pem", "cert_file": f"{tmp_path}/client.pem"}
        messaging = settings(nats, **files, key_file=f"{tmp_path}/client.key")
        async with controlling(messaging) as reach, served(messaging, "a", Driver(), tmp_path):
            assert await reach.call("a", Command(host="a", verb=ListGuests())) == []
        stranger = NatsTransport(settings(nats, ca_file=f"{tmp_path}/ca.pem"))
        running = asyncio.create_task(stranger.run())
        assert not await stranger.link.ready(0.5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with NatsServer(tmp_path, tls) as nats:
        run(scenario(nats))


def test_certificates_that_are_not_there_keep_a_process_from_starting(nats: NatsServer) -> None:
    async def scenario() -> None:
        with pytest.raises(Setting, match="certificates cannot be read"):
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
    for who in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])
        (directory / f"{who}.pem").write_bytes(certificate(name, key, False).public_bytes(pem))
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (directory / f"{who}.key").write_bytes(private)
