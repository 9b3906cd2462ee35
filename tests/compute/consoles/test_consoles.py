"""Consoles of servers: console log, console URLs and tokens."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kilonova.hosts.drivers.sim.driver import SimDriver
from tests.compute.consoles.support import fake_displays
from tests.compute.servers.support import act, rules
from tests.support import run
from tests.support.cloud import fault, put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

OUTPUT = "os-getConsoleOutput"
ACTION = "POST /servers/{server_id}/action#"
CONSOLES = "/servers/{server_id}/remote-consoles"
TOKEN = "/os-console-auth-tokens/{token}"
# No test connects to the displays.
VNC, SERIAL = 5901, 7000


async def request_console(
    c: FullCloud, server_id: str, protocol: str, type: str, *, version: str = "2.104", as_: str = "member"
) -> Any:
    body = {"remote_console": {"protocol": protocol, "type": type}}
    return await c.post(f"/servers/{server_id}/remote-consoles", body, version=version, as_=as_)


def token_of(url: str) -> str:
    (path,) = parse_qs(urlsplit(url).query)["path"]
    (token,) = parse_qs(urlsplit(path).query)["token"]
    return token


@proves(ACTION + OUTPUT)
def test_console_log(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            await act(c, server_id, "reboot", {"type": "HARD"})
            await c.wait_until_settled(server_id)
            lines = []
            for number in (1, 2):
                lines += [f"boot {number} of {server_id}\n", "processors: 1\n", "memory: 512 MiB\n", "\n"]
            for body, expected in [
                ({}, "".join(lines)),
                ({"length": None}, "".join(lines)),
                ({"length": -1}, "".join(lines)),
                ({"length": "3"}, "processors: 1\nmemory: 512 MiB\n"),
                ({"length": 3}, "processors: 1\nmemory: 512 MiB\n"),
                ({"length": 0}, ""),
            ]:
                answer = await act(c, server_id, OUTPUT, body)
                assert (answer.status, answer.json()) == (200, {"output": expected}), body
            for wrong in ({"length": -2}, {"length": "x"}, {"lines": 1}, None, {"length": 2**62}):
                assert (await act(c, server_id, OUTPUT, wrong)).status == 400, wrong
            assert (await act(c, server_id, OUTPUT, {}, as_="reader")).status == 403
            assert (await act(c, server_id, OUTPUT, {}, as_="other")).status == 404

    run(scenario())


def test_console_log_has_no_control_characters(sqlite_url: str, monkeypatch: Any) -> None:
    async def get_console_log(self: Any, guest_id: str, lines: int | None) -> bytes:
        return b"a\tb\r\n\x1b[31mred\x00\x07 \xc3\xa4 \xff\n"

    monkeypatch.setattr(SimDriver, "get_console_log", get_console_log)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            answer = await act(c, (await c.boot_active())["id"], OUTPUT, {})
            assert answer.json() == {"output": "a\tb\n[31mred ä �\n"}

    run(scenario())


def test_servers_without_console(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            await put_server(c.db, "homeless")
            await put_server(c.db, "lost", host="sim-001")
            server_id = (await c.boot_active())["id"]
            words = "Instance homeless is not ready: it has no host"
            assert fault(await act(c, "homeless", OUTPUT, {})) == (409, "conflictingRequest", words)
            assert (await act(c, "lost", OUTPUT, {})).status == 409
            assert (await request_console(c, "homeless", "vnc", "novnc")).status == 409
            with rules(c) as failing:
                failing.add_failure("*", "look_console", "error", 1, "no file")
                failing.add_failure("*", "look_console", "unreachable", 1, None)
            assert (await act(c, server_id, OUTPUT, {})).status == 404
            assert (await act(c, server_id, OUTPUT, {})).status == 409
            await act(c, server_id, "os-stop")
            await c.wait_until_settled(server_id)
            assert (await request_console(c, server_id, "vnc", "novnc")).status == 409
            del c.services.hosts
            assert (await act(c, server_id, OUTPUT, {})).status == 503

    run(scenario())


@proves(f"POST {CONSOLES}", f"GET {TOKEN}")
def test_console_url_and_token(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, console__url="https://fake_displays.example/x/") as c:
            server_id = (await c.boot_active())["id"]
            with fake_displays(vnc=VNC, serial=SERIAL):
                answer = await request_console(c, server_id, "vnc", "novnc")
                shown = answer.json()["remote_console"]
                at = urlsplit(shown.pop("url"))
                assert (answer.status, shown) == (200, {"protocol": "vnc", "type": "novnc"})
                assert f"{at.scheme}://{at.netloc}{at.path}" == "https://fake_displays.example/x/console/vnc_auto.html"
                assert parse_qs(at.query)["path"][0].startswith("x/console/websocket?token=")
                token = token_of(at.geturl())
                path = f"/os-console-auth-tokens/{token}"
                where = {"instance_uuid": server_id, "host": "sim-001", "port": None, "internal_access_path": None}
                assert (await c.get(path, as_="admin", version="2.31")).json() == {"console": where}
                newest = (await c.get(path, as_="admin", version="2.99")).json()
                assert newest == {"console": {**where, "tls_port": None}}
                assert (await c.get(path, as_="admin", version="2.30")).status == 401
                assert (await c.get(path, version="2.99")).status == 403
                assert (await c.get(f"{path}?x=1", as_="admin", version="2.98")).status == 200
                assert (await c.get(f"{path}?x=1", as_="admin", version="2.99")).status == 400
                assert (await c.get(f"{path}0", as_="admin", version="2.31")).status == 404
                serial = (await request_console(c, server_id, "serial", "serial")).json()["remote_console"]["url"]
                assert serial.startswith("wss://fake_displays.example/x/console/websocket?token=")
                token = serial.rpartition("=")[2]
                found = await c.get(f"/os-console-auth-tokens/{token}", as_="admin", version="2.31")
                assert found.json() == {"console": where}
                told = [str(vars(record)) for record in caplog.records]
                assert any("/os-console-auth-tokens/***" in each for each in told)
                assert not any(token in each for each in told)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE console_tokens SET expires_at = 1")
            assert (await c.get(path, as_="admin", version="2.31")).status == 404
            with fake_displays(vnc=VNC):
                await request_console(c, server_id, "vnc", "novnc")
            assert await c.db.fetch_value("SELECT COUNT(*) FROM console_tokens") == 1

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            unavailable = (400, "badRequest", "Unavailable console type {}.")
            for protocol, type in [
                ("vnc", "novnc"),
                ("vnc", "xvpvnc"),
                ("serial", "serial"),
                ("spice", "spice-html5"),
                ("spice", "spice-direct"),
                ("rdp", "rdp-html5"),
                ("mks", "webmks"),
            ]:
                with fake_displays():
                    answer = await request_console(c, server_id, protocol, type)
                assert fault(answer) == (*unavailable[:2], unavailable[2].format(type))
            assert (await request_console(c, server_id, "vnc", "serial")).status == 400
            with fake_displays(vnc=VNC):
                assert (await request_console(c, server_id, "vnc", "novnc", version="2.5")).status == 404
                assert (await request_console(c, server_id, "vnc", "novnc", version="2.6")).status == 200
                assert (await request_console(c, server_id, "vnc", "novnc", as_="reader")).status == 403
                assert (await request_console(c, server_id, "vnc", "novnc", as_="other")).status == 404
            for version, protocol, type in [("2.7", "mks", "webmks"), ("2.98", "spice", "spice-direct")]:
                _, _, message = fault(await request_console(c, server_id, protocol, type, version=version))
                assert message.startswith("Invalid input for field/attribute"), message
            assert await c.db.fetch_value("SELECT COUNT(*) FROM console_tokens") == 1

    run(scenario())


@proves(ACTION + "os-getVNCConsole", ACTION + "os-getSerialConsole")
def test_console_actions_before_2_6(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            with fake_displays(vnc=VNC, serial=SERIAL):
                shown = (await act(c, server_id, "os-getVNCConsole", {"type": "novnc"})).json()["console"]
                assert (shown["type"], set(shown)) == ("novnc", {"type", "url"})
                serial = (await act(c, server_id, "os-getSerialConsole", {"type": "serial"})).json()["console"]
                assert serial["url"].startswith("ws://")
            assert (await act(c, server_id, "os-getSPICEConsole", {"type": "spice-html5"})).status == 400
            assert (await act(c, server_id, "os-getSPICEConsole", {"type": "spice-direct"})).status == 400
            refused = fault(await act(c, server_id, "os-getRDPConsole", {"type": "rdp-html5"}))
            assert refused == (400, "badRequest", "Unavailable console type rdp-html5.")
            assert (await act(c, server_id, "os-getRDPConsole", {"type": "rdp-html5"}, version="2.6")).status == 404
            late = await act(c, server_id, "os-getVNCConsole", {"type": "novnc"}, version="2.6")
            assert late.status == 404

    run(scenario())
