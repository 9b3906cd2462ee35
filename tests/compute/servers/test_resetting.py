"""What administrators say of a server's state, and what becomes of what was going on."""

from __future__ import annotations

from tests.compute.servers.shelved import KEPT, shelved
from tests.compute.servers.support import act, rules, until
from tests.compute.servers.test_halting import done, refusal, seen
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import whole

ACTION = "POST /servers/{server_id}/action#"


@proves(ACTION + "os-resetState")
def test_an_idle_server_is_at_once_what_is_said(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            for state, status in (("error", "ERROR"), ("active", "ACTIVE"), ("error", "ERROR")):
                answer = await act(c, server_id, "os-resetState", {"state": state}, as_="admin")
                assert (answer.status, answer.body) == (202, b"")
                assert seen(await c.show(server_id)) == (status, state, 1)
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [one["action"] for one in listed] == ["resetState"] * 3 + ["create"]
            assert (await done(c, server_id, "reboot", {"type": "HARD"}))["status"] == "ACTIVE"
            for body in (None, {}, {"state": "stopped"}, {"state": 1}, {"state": "error", "more": 1}):
                assert fault(await act(c, server_id, "os-resetState", body, as_="admin"))[0] == 400, body
            for who, status_code in (("member", 403), ("manager", 403), ("reader", 403), ("other", 404)):
                answer = await act(c, server_id, "os-resetState", {"state": "error"}, as_=who)
                assert answer.status == status_code, who

    run(scenario())


def test_what_is_going_on_is_undone(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "power_off", "hang", None, None)
                assert (await act(c, server_id, "os-stop")).status == 202
                await until(c, server_id, OS_EXT_STS__task_state="powering-off")
                assert (await act(c, server_id, "os-resetState", {"state": "error"}, as_="admin")).status == 202
                sim.clear()
            shown = await until(c, server_id, status="ERROR", OS_EXT_STS__task_state=None)
            assert seen(shown) == ("ERROR", "error", 1)
            assert (await c.guests())[server_id][1] == "running"

    run(scenario())


def test_what_would_lose_sight_of_something_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            kept = (await shelved(c, "SHELVED"))["id"]
            resized = (await c.active())["id"]
            await done(c, resized, "migrate", as_="admin")
            for server_id, state in ((kept, "shelved"), (resized, "resized")):
                for wanted in ("active", "error"):
                    message = await refusal(c, server_id, "os-resetState", {"state": wanted}, as_="admin")
                    assert message.endswith(f"vm_state {state}")

    run(scenario())


@proves(ACTION + "injectNetworkInfo")
def test_actions_of_old_networks(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            assert (await act(c, server_id, "resetNetwork", as_="admin")).status == 410
            assert (await act(c, server_id, "injectNetworkInfo", as_="admin")).status == 202
            assert (await act(c, server_id, "injectNetworkInfo", as_="member")).status == 403
            nobody = "11111111-1111-1111-1111-111111111111"
            assert (await act(c, nobody, "injectNetworkInfo", as_="admin")).status == 404

    run(scenario())
