"""Quota sets, quota classes and limits, and the check that a claim makes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.quotas import model
from kilonova.http.errors import Forbidden
from tests.support import run
from tests.support.cloud import DEMO, OTHER, cloud, fault, insert_server, put_server
from tests.support.proves import proves

LASTING = {"instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members"}
INJECTED = {"injected_files", "injected_file_content_bytes", "injected_file_path_bytes"}
NETWORK = {"fixed_ips", "floating_ips", "security_groups", "security_group_rules"}
SET = f"/os-quota-sets/{DEMO}"


@proves(
    "GET /os-quota-sets/{project_id}",
    "GET /os-quota-sets/{project_id}/detail",
    "GET /os-quota-sets/{project_id}/defaults",
    "PUT /os-quota-sets/{project_id}",
    "DELETE /os-quota-sets/{project_id}",
)
def test_changed_and_put_back(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            before = (await c.get(SET, version="latest")).json()["quota_set"]
            assert (before["id"], before["instances"], before["cores"]) == (DEMO, 10, 20)
            changed = await c.put(SET, {"quota_set": {"instances": 3, "cores": "-1"}}, as_="admin", version="latest")
            assert changed.json()["quota_set"] == {
                **{name: limit for name, limit in before.items() if name != "id"},
                "instances": 3,
                "cores": -1,
            }
            assert (await c.get(SET, version="latest")).json()["quota_set"]["instances"] == 3
            assert (await c.get(f"{SET}/defaults", version="latest")).json()["quota_set"] == before
            assert (await c.get(f"/os-quota-sets/{OTHER}", as_="other")).json()["quota_set"]["instances"] == 10
            detail = (await c.get(f"{SET}/detail", version="latest")).json()["quota_set"]
            assert detail["instances"] == {"limit": 3, "in_use": 0, "reserved": 0}
            assert (await c.delete(SET, as_="admin")).status == 202
            assert (await c.get(SET, version="latest")).json()["quota_set"] == before

    run(scenario())


@pytest.mark.parametrize(
    "version, expected",
    [("2.35", LASTING | INJECTED | NETWORK), ("2.36", LASTING | INJECTED), ("2.57", LASTING), ("latest", LASTING)],
)
def test_each_version_has_its_resources(database_url: str, version: str, expected: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for path in ("", "/detail", "/defaults"):
                shown = (await c.get(SET + path, version=version)).json()["quota_set"]
                assert set(shown) == expected | {"id"}
            whole = {"quota_set": dict.fromkeys(expected, 7)}
            changed = await c.put(SET, whole, as_="admin", version=version)
            assert set(changed.json()["quota_set"]) == expected
            for name in (LASTING | INJECTED | NETWORK) - expected:
                refused = await c.put(SET, {"quota_set": {name: 7}}, as_="admin", version=version)
                assert fault(refused)[0] == 400
            shown = (await c.get(SET, version=version)).json()["quota_set"]
            assert {name: shown[name] for name in expected - NETWORK} == dict.fromkeys(expected - NETWORK, 7)
            assert all(shown[name] == -1 for name in expected & NETWORK)

    run(scenario())


@proves("GET /os-quota-class-sets/{name}", "PUT /os-quota-class-sets/{name}")
def test_the_default_class_stands_before_the_configuration(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            path = "/os-quota-class-sets/default"
            shown = (await c.get(path, as_="admin", version="latest")).json()["quota_class_set"]
            assert (shown.pop("id"), set(shown)) == ("default", LASTING)
            body = {"quota_class_set": {"instances": 50}}
            changed = await c.put(path, body, as_="admin", version="latest")
            assert changed.json()["quota_class_set"] == {**shown, "instances": 50}
            assert (await c.get(SET)).json()["quota_set"]["instances"] == 50
            assert (await c.get(f"{SET}/defaults")).json()["quota_set"]["instances"] == 50
            await c.put(SET, {"quota_set": {"instances": 5}}, as_="admin")
            assert (await c.get(SET)).json()["quota_set"]["instances"] == 5
            # Another class is kept, but means nothing to projects.
            await c.put("/os-quota-class-sets/gold", {"quota_class_set": {"cores": 1}}, as_="admin")
            assert (await c.get(SET)).json()["quota_set"]["cores"] == 20
            assert (await c.get(path)).status == 403

    run(scenario())


@pytest.mark.parametrize(
    "version, expected",
    [
        ("2.49", (LASTING - {"server_groups", "server_group_members"}) | INJECTED | NETWORK),
        ("2.50", LASTING | INJECTED),
        ("2.57", LASTING),
    ],
)
def test_each_version_has_its_resources_in_classes(database_url: str, version: str, expected: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            path = "/os-quota-class-sets/default"
            shown = (await c.get(path, as_="admin", version=version)).json()["quota_class_set"]
            assert set(shown) == expected | {"id"}
            whole = {"quota_class_set": dict.fromkeys(expected, 7)}
            changed = await c.put(path, whole, as_="admin", version=version)
            assert set(changed.json()["quota_class_set"]) == expected

    run(scenario())


def test_a_limit_below_what_is_used_needs_force(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for number in range(3):
                await put_server(c.db, f"s{number}")
            refused = await c.put(SET, {"quota_set": {"instances": 2, "cores": 50}}, as_="admin")
            assert "already used and reserved 3" in fault(refused)[2]
            assert (await c.get(SET)).json()["quota_set"]["cores"] == 20
            forced = await c.put(SET, {"quota_set": {"instances": 2, "force": "True"}}, as_="admin")
            assert forced.json()["quota_set"]["instances"] == 2
            assert (await c.put(SET, {"quota_set": {"instances": -1}}, as_="admin")).status == 200

    run(scenario())


@pytest.mark.parametrize("limit", [-2, "-2", 2**31, "many", None, 1.5, True])
def test_what_is_no_limit(sqlite_url: str, limit: Any) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert (await c.put(SET, {"quota_set": {"cores": limit}}, as_="admin")).status == 400

    run(scenario())


def test_who_may(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for path in (SET, f"{SET}/detail"):
                assert (await c.get(path, as_="reader")).status == 200
                assert (await c.get(path, as_="other")).status == 403
                assert (await c.get(path, as_="admin")).status == 200
            assert (await c.get(f"{SET}/defaults", as_="other")).status == 200
            assert (await c.put(SET, {"quota_set": {"cores": 1}}, as_="manager")).status == 403
            assert (await c.delete(SET, as_="manager")).status == 403

    run(scenario())


def test_users_have_the_quota_of_their_project(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert (await c.get(f"{SET}?user_id=u")).json() == (await c.get(SET)).json()
            refused = await c.put(f"{SET}?user_id=u", {"quota_set": {"cores": 1}}, as_="admin")
            assert "Quotas belong to projects" in fault(refused)[2]
            assert (await c.delete(f"{SET}?user_id=u", as_="admin")).status == 400
            assert (await c.get(f"{SET}?colour=red", version="2.74")).status == 200
            assert (await c.get(f"{SET}?colour=red", version="2.75")).status == 400

    run(scenario())


@proves("GET /limits")
def test_limits_show_what_is_used(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, "a", vcpus=2, ram=1024)
            await put_server(c.db, "b", vcpus=1, ram=512, vm_state="error")
            await put_server(c.db, "gone", vcpus=4, ram=4096, deleted=True)
            await put_server(c.db, "theirs", project_id=OTHER, vcpus=8)
            limits = (await c.get("/limits", version="latest")).json()["limits"]
            assert limits["rate"] == []
            assert limits["absolute"] == {
                "maxTotalInstances": 10,
                "maxTotalCores": 20,
                "maxTotalRAMSize": 51200,
                "maxServerMeta": 128,
                "maxTotalKeypairs": 100,
                "maxServerGroups": 10,
                "maxServerGroupMembers": 10,
                "totalInstancesUsed": 2,
                "totalCoresUsed": 3,
                "totalRAMUsed": 1536,
                "totalServerGroupsUsed": 0,
            }
            theirs = f"/limits?tenant_id={OTHER}"
            assert (await c.get(theirs, as_="admin")).json()["limits"]["absolute"]["totalCoresUsed"] == 8
            assert (await c.get(theirs)).status == 403
            assert (await c.get(f"/limits?tenant_id={DEMO}")).status == 200
            assert (await c.get("/limits?colour=red", version="2.75")).status == 400

    run(scenario())


@pytest.mark.parametrize(
    "version, more",
    [
        (
            "2.35",
            {"maxPersonality", "maxPersonalitySize", "maxImageMeta", "maxSecurityGroups", "maxSecurityGroupRules"}
            | {"maxTotalFloatingIps", "totalSecurityGroupsUsed", "totalFloatingIpsUsed"},
        ),
        ("2.36", {"maxPersonality", "maxPersonalitySize", "maxImageMeta"}),
        ("2.39", {"maxPersonality", "maxPersonalitySize"}),
        ("2.57", set()),
    ],
)
def test_each_version_has_its_limits(sqlite_url: str, version: str, more: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            newest = (await c.get("/limits", version="latest")).json()["limits"]["absolute"]
            shown = (await c.get("/limits", version=version)).json()["limits"]["absolute"]
            assert set(shown) - set(newest) == more

    run(scenario())


class TestClaims:
    def test_the_refusal_names_everything_that_is_too_much(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url, quota__instances=2, quota__cores=3, quota__ram=-1) as c:
                await put_server(c.db, "a", vcpus=2)
                config = c.services.config
                async with c.db.transaction() as tx:
                    await model.fit(tx, DEMO, config, {"instances": 1, "cores": 1, "ram": 10**6})
                with pytest.raises(Forbidden) as refused:
                    async with c.db.transaction() as tx:
                        await model.fit(tx, DEMO, config, {"instances": 2, "cores": 4, "ram": 1})
                assert refused.value.message == (
                    "Quota exceeded for instances, cores: Requested 2, 4, but already used 1, 2 of 2, 3 "
                    "instances, cores"
                )

        run(scenario())

    def test_claims_of_one_project_wait_for_each_other(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url, quota__instances=5) as c:

                async def claim(number: int) -> bool:
                    try:
                        async with c.db.transaction() as tx:
                            await model.fit(tx, DEMO, c.services.config, {"instances": 1})
                            await insert_server(tx, f"s{number}")
                    except Forbidden:
                        return False
                    return True

                assert sum(await asyncio.gather(*(claim(number) for number in range(12)))) == 5
                assert (await model.usage(c.db, DEMO))["instances"] == 5

        run(scenario())
