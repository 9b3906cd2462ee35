"""Access rules of users, and tokens that have some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.identity.support import cloud
from tests.identity.test_application_credentials import Owner
from tests.identity.test_client import _client
from tests.support import run

SERVERS = {"service": "compute", "method": "GET", "path": "/v2.1/servers"}
PROJECTS = {"service": "identity", "method": "GET", "path": "/v3/auth/projects"}


def test_rules_are_shared_listed_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            first = await o.create(access_rules=[SERVERS, PROJECTS, SERVERS])
            assert [{**rule, "id": ""} for rule in first["access_rules"]] == [
                {"id": "", **SERVERS},
                {"id": "", **PROJECTS},
            ]
            ids = [rule["id"] for rule in first["access_rules"]]
            second = await o.create(name="second", access_rules=[SERVERS, {"id": ids[1]}])
            assert [rule["id"] for rule in second["access_rules"]] == ids
            path = f"/v3/users/{o.user_id}/access_rules"
            for token in (o.demo, o.admin):
                listed = (await c.ok("GET", path, token))["access_rules"]
                assert [rule["id"] for rule in listed] == ids
                one = (await c.ok("GET", f"{path}/{ids[0]}", token))["access_rule"]
                assert one == {
                    **SERVERS,
                    "id": ids[0],
                    "links": {"self": f"http://cloud.test:1234/identity{path}/{ids[0]}"},
                }
            assert (await c.ok("GET", f"{path}?method=POST", o.demo))["access_rules"] == []
            shown = (await c.ok("GET", f"{o.path}/{second['id']}", o.demo))["application_credential"]
            assert [rule["id"] for rule in shown["access_rules"]] == ids
            manager = await c.login("demo-manager")
            for verb in ("GET", "DELETE"):
                assert (await c.call(verb, f"{path}/{ids[0]}", manager)).status == 403
            for each in (first, second):
                used = await c.call("DELETE", f"{path}/{ids[0]}", o.demo)
                assert (used.status, "uses it" in used.json()["error"]["message"]) == (403, True)
                await c.ok("DELETE", f"{o.path}/{each['id']}", o.demo)
            await c.ok("DELETE", f"{path}/{ids[0]}", o.demo)
            assert (await c.call("GET", f"{path}/{ids[0]}", o.demo)).status == 404

    run(scenario())


def test_rules_of_another_user_cannot_be_used(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            (rule,) = (await o.create(access_rules=[SERVERS]))["access_rules"]
            manager_id = await c.ident("user", "demo-manager")
            path = f"/v3/users/{manager_id}/application_credentials"
            body = {"application_credential": {"name": "x", "access_rules": [{"id": rule["id"]}]}}
            assert (await c.call("POST", path, await c.login("demo-manager"), body)).status == 404

    run(scenario())


def test_token_opens_only_what_its_rules_name(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            token = await o.token(await o.create(access_rules=[PROJECTS]))
            assert await c.works(token)
            for verb, path in (("GET", "/v3/auth/domains"), ("HEAD", "/v3/auth/projects"), ("GET", o.path)):
                assert (await c.call(verb, path, token)).status == 401, path
            nothing = await o.token(await o.create(name="nothing", access_rules=[]))
            assert not await c.works(nothing)

    run(scenario())


def test_services_that_do_not_enforce_rules_do_not_get_the_token(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            made = await o.create(access_rules=[SERVERS])
            token, service = await o.token(made), await c.login("kilonova")

            async def validate(caller: str, verb: str = "GET", **headers: str) -> Any:
                return await c.call(verb, "/v3/auth/tokens?nocatalog", caller, X_Subject_Token=token, **headers)

            for headers, status in (
                ({}, 404),
                ({"OpenStack_Identity_Access_Rules": ""}, 404),
                ({"OpenStack_Identity_Access_Rules": "0.9"}, 404),
                ({"OpenStack_Identity_Access_Rules": "yes"}, 404),
                ({"OpenStack_Identity_Access_Rules": "1"}, 200),
                ({"OpenStack_Identity_Access_Rules": "1.0"}, 200),
            ):
                for verb in ("GET", "HEAD"):
                    assert (await validate(service, verb, **headers)).status == status, headers
            shown = (await validate(token, OpenStack_Identity_Access_Rules="1.0")).json()["token"]
            assert shown["application_credential"]["access_rules"] == made["access_rules"]
            # The client of the cloud's own services enforces them.
            local, remote = await c.tokens.validate(token), await _client(c.caller).validate(token)
            assert local is not None
            assert remote is not None
            assert remote.access_rules == local.access_rules
            assert remote.access_rules is not None
            assert remote.application_credential == local.application_credential
            other = await o.token(await o.create(name="other"))
            found = await _client(c.caller).validate(other)
            assert found is not None
            assert found.access_rules is None

    run(scenario())
