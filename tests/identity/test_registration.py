"""A registration that is interrupted at any of its changes is completed by the next one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kilonova.http.client import Caller, ClientResponse, Unreachable
from kilonova.identity.administrator import Administrator, RegistrationError
from kilonova.identity.own_services import INTERFACES, OwnService
from kilonova.identity.registration import Change, Permissions, Registration, Wanted
from tests.identity.support import PASSWORDS, cloud
from tests.support import run

WANTED = Wanted(
    username="new",
    password="its password",
    user_domain="Default",
    project="new services",
    project_domain="Default",
    region="New",
    services=(OwnService("compute", "nova", "/compute/v2.1"), OwnService("baremetal", "ironic", "/ironic")),
    urls=dict.fromkeys(INTERFACES, "http://new.example"),
)


class Interrupted:
    """Fails at the change with this number, before or after it has been made. Logins are no changes."""

    def __init__(self, caller: Caller, number: int = -1, *, lose_response: bool = False) -> None:
        self.caller = caller
        self.number = number
        self.lose_response = lose_response
        self.changes: list[str] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: Any = None,
    ) -> ClientResponse:
        is_interrupted = False
        if method in ("POST", "PUT", "PATCH") and "/auth/tokens" not in path:
            is_interrupted = len(self.changes) == self.number
            self.changes.append(path)
        if is_interrupted and not self.lose_response:
            raise Unreachable("cut off")
        response = await self.caller.request(method, path, headers=headers, json=json, content=content)
        if is_interrupted:
            raise Unreachable("cut off")
        return response

    def stream(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


NOTHING, DRY_RUN = Permissions(), Permissions(dry_run=True)


async def register(
    caller: Any, permissions: Permissions = NOTHING, changes: list[Change] | None = None
) -> list[Change]:
    user = {"name": "admin", "domain": {"name": "Default"}, "password": PASSWORDS["admin"]}
    scope = {"project": {"name": "admin", "domain": {"name": "Default"}}}
    auth = {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}
    administrator = Administrator(caller, auth, "admin")
    await administrator.log_in()
    made: list[Change] = [] if changes is None else changes
    await Registration(administrator, WANTED, permissions, made).run()
    return made


@pytest.mark.parametrize("lose_response", [False, True])
def test_interrupted_registration_is_completed(database_url: str, tmp_path: Path, lose_response: bool) -> None:
    """Each run makes one change more."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            planned = [one for one in await register(c.caller, DRY_RUN) if one.action == "created"]
            interruptions = 0
            while True:
                try:
                    await register(Interrupted(c.caller, 0 if lose_response else 1, lose_response=lose_response))
                    break
                except Unreachable:
                    interruptions += 1
                    assert interruptions <= len(planned)
            assert interruptions == len(planned) - (0 if lose_response else 1)
            assert {change.action for change in await register(c.caller)} == {"unchanged"}

    run(scenario())


def test_changes_before_an_error_are_known(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            changes: list[Change] = []
            with pytest.raises(Unreachable):
                await register(Interrupted(c.caller, 2), changes=changes)
            assert [(one.action, one.kind) for one in changes if one.action != "unchanged"] == [
                ("created", "project"),
                ("created", "user"),
            ]

    run(scenario())


def test_several_services_of_one_type_are_refused(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            await register(c.caller)
            admin = await c.login("admin")
            body = {"service": {"type": "baremetal", "name": "another"}}
            other = (await c.ok("POST", "/v3/services", admin, body))["service"]["id"]
            endpoint = {"service_id": other, "interface": "public", "region_id": "New", "url": "http://other.example"}
            await c.ok("POST", "/v3/endpoints", admin, {"endpoint": endpoint})
            with pytest.raises(RegistrationError, match="2 services of the type baremetal"):
                await register(c.caller)

    run(scenario())


def test_disabled_user_is_refused(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            await register(c.caller)
            user = await c.ident("user", "new")
            await c.ok("PATCH", f"/v3/users/{user}", await c.login("admin"), {"user": {"enabled": False}})
            with pytest.raises(RegistrationError, match=f"openstack user set --enable {user}"):
                await register(c.caller)

    run(scenario())
