"""Quota sets, quota classes and limits, and the quota check of new servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.quotas import model
from kilonova.compute.quotas.source import find_source
from kilonova.http.errors import Forbidden
from tests.support import run
from tests.support.cloud import DEMO, OTHER, cloud, fault, insert_server, put_server
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

CURRENT = {"instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members"}
INJECTED = {"injected_files", "injected_file_content_bytes", "injected_file_path_bytes"}
NETWORK = {"fixed_ips", "floating_ips", "security_groups", "security_group_rules"}
SET = f"/os-quota-sets/{DEMO}"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"
MANY = ("member", "member", "manager", "manager")


@proves(
    "GET /os-quota-sets/{project_id}",
    "GET /os-quota-sets/{project_id}/detail",
    "GET /os-quota-sets/{project_id}/defaults",
    "PUT /os-quota-sets/{project_id}",
    "DELETE /os-quota-sets/{project_id}",
)
def test_update_and_reset(database_url: str) -> None:
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
    [("2.35", CURRENT | INJECTED | NETWORK), ("2.36", CURRENT | INJECTED), ("2.57", CURRENT), ("latest", CURRENT)],
)
def test_resources_by_version(database_url: str, version: str, expected: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for path in ("", "/detail", "/defaults"):
                shown = (await c.get(SET + path, version=version)).json()["quota_set"]
                assert set(shown) == expected | {"id"}
            whole = {"quota_set": dict.fromkeys(expected, 7)}
            changed = await c.put(SET, whole, as_="admin", version=version)
            assert set(changed.json()["quota_set"]) == expected
            for name in (CURRENT | INJECTED | NETWORK) - expected:
                refused = await c.put(SET, {"quota_set": {name: 7}}, as_="admin", version=version)
                assert fault(refused)[0] == 400
            shown = (await c.get(SET, version=version)).json()["quota_set"]
            assert {name: shown[name] for name in expected} == dict.fromkeys(expected, 7)

    run(scenario())


@proves("GET /os-quota-class-sets/{name}", "PUT /os-quota-class-sets/{name}")
def test_default_class_overrides_configuration(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            path = "/os-quota-class-sets/default"
            shown = (await c.get(path, as_="admin", version="latest")).json()["quota_class_set"]
            assert (shown.pop("id"), set(shown)) == ("default", CURRENT)
            body = {"quota_class_set": {"instances": 50}}
            changed = await c.put(path, body, as_="admin", version="latest")
            assert changed.json()["quota_class_set"] == {**shown, "instances": 50}
            assert (await c.get(SET)).json()["quota_set"]["instances"] == 50
            assert (await c.get(f"{SET}/defaults")).json()["quota_set"]["instances"] == 50
            await c.put(SET, {"quota_set": {"instances": 5}}, as_="admin")
            assert (await c.get(SET)).json()["quota_set"]["instances"] == 5
            # Other classes are stored, but have no effect.
            await c.put("/os-quota-class-sets/gold", {"quota_class_set": {"cores": 1}}, as_="admin")
            assert (await c.get(SET)).json()["quota_set"]["cores"] == 20
            assert (await c.get(path)).status == 403

    run(scenario())


@pytest.mark.parametrize(
    "version, expected",
    [
        ("2.49", (CURRENT - {"server_groups", "server_group_members"}) | INJECTED | NETWORK),
        ("2.50", CURRENT | INJECTED),
        ("2.57", CURRENT),
    ],
)
def test_resources_of_classes_by_version(database_url: str, version: str, expected: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            path = "/os-quota-class-sets/default"
            shown = (await c.get(path, as_="admin", version=version)).json()["quota_class_set"]
            assert set(shown) == expected | {"id"}
            whole = {"quota_class_set": dict.fromkeys(expected, 7)}
            changed = await c.put(path, whole, as_="admin", version=version)
            assert changed.json() == whole
            shown = (await c.get(path, as_="admin", version=version)).json()["quota_class_set"]
            assert shown == {"id": "default", **whole["quota_class_set"]}

    run(scenario())


def test_limit_below_usage_needs_force(database_url: str) -> None:
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
def test_invalid_limits_are_refused(sqlite_url: str, limit: Any) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert (await c.put(SET, {"quota_set": {"cores": limit}}, as_="admin")).status == 400

    run(scenario())


def test_policies(sqlite_url: str) -> None:
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


def test_user_quotas(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            mine = f"{SET}?user_id=member-id"
            assert (await c.get(mine)).json() == (await c.get(SET)).json()
            await put_server(c.db, "a", vcpus=2)
            await put_server(c.db, "b", vcpus=4, user_id="somebody")

            async def put(body: dict[str, Any], path: str = mine) -> Any:
                return await c.put(path, {"quota_set": body}, as_="admin", version="2.57")

            changed = await put({"instances": 3, "cores": "2"})
            assert (changed.status, changed.json()["quota_set"]["instances"]) == (200, 3)
            shown = (await c.get(mine, version="2.57")).json()["quota_set"]
            assert shown == {"id": DEMO, **changed.json()["quota_set"]}
            assert (shown["cores"], shown["ram"]) == (2, 51200)
            # The project and its other users are unchanged.
            for path in (SET, f"{SET}?user_id=somebody", f"{SET}?user_id="):
                assert (await c.get(path)).json()["quota_set"]["cores"] == 20
            detail = (await c.get(f"{SET}/detail?user_id=member-id")).json()["quota_set"]
            assert detail["cores"] == {"limit": 2, "in_use": 2, "reserved": 0}
            detail = (await c.get(f"{SET}/detail")).json()["quota_set"]
            assert detail["cores"] == {"limit": 20, "in_use": 6, "reserved": 0}
            # A user's limit must be between the user's usage and the project's limit.
            for body, words in (
                ({"cores": 1}, "Quota limit 1 for cores must be greater than or equal to already used and reserved 2"),
                ({"cores": 21}, "Quota limit 21 for cores must be less than or equal to 20"),
                ({"ram": -1}, "Quota limit -1 for ram must be less than or equal to 51200"),
            ):
                status, _, message = fault(await put({"instances": 1, **body}))
                assert status == 400
                assert words in message
                assert (await put({**body, "force": True})).status == 200
            assert (await c.get(mine)).json()["quota_set"]["instances"] == 3
            assert (await put({"ram": -1}, SET)).status == 200
            assert (await put({"ram": -1})).status == 200
            # Later changes of the project's limits apply to users without their own limits.
            await put({"key_pairs": 7}, SET)
            assert (await c.get(mine)).json()["quota_set"]["key_pairs"] == 7
            assert (await c.delete(mine, as_="admin")).status == 202
            assert (await c.get(mine)).json() == (await c.get(SET)).json()
            await put({"instances": 5})
            assert (await c.delete(SET, as_="admin")).status == 202
            assert (await c.get(mine)).json()["quota_set"]["instances"] == 10
            assert (await c.put(mine, {"quota_set": {"cores": 1}}, as_="manager")).status == 403

    run(scenario())


def test_unknown_query_keys_are_refused_from_2_75(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert (await c.get(f"{SET}?colour=red", version="2.74")).status == 200
            assert (await c.get(f"{SET}?colour=red", version="2.75")).status == 400

    run(scenario())


def test_usage_of_server_groups_and_key_pairs(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            async with c.db.transaction() as tx:
                for group, user, members in (("g1", "member-id", 1), ("g2", "member-id", 3), ("g3", "u", 2)):
                    await tx.execute(
                        "INSERT INTO server_groups (id, project_id, user_id, name, policy, created_at)"
                        " VALUES ($1, $2, $3, $1, 'affinity', 1)",
                        group,
                        DEMO,
                        user,
                    )
                    for number in range(members):
                        server = f"{group}-{number}"
                        await insert_server(tx, server)
                        await tx.execute(
                            "INSERT INTO server_group_members (server_id, group_id) VALUES ($1, $2)", server, group
                        )
                await tx.execute(
                    "INSERT INTO keypairs (user_id, name, type, fingerprint, public_key, created_at)"
                    " VALUES ('member-id', 'k', 'ssh', 'f', 'p', 1)"
                )

            async def in_use(query: str = "") -> tuple[int, int, int]:
                shown = (await c.get(f"{SET}/detail{query}", version="latest")).json()["quota_set"]
                groups, members, keys = (
                    shown[name]["in_use"] for name in ("server_groups", "server_group_members", "key_pairs")
                )
                return groups, members, keys

            # The usage of server_group_members is that of the largest group. Key pairs belong to users.
            assert await in_use() == (3, 3, 0)
            assert await in_use("?user_id=member-id") == (2, 3, 1)
            assert await in_use("?user_id=u") == (1, 2, 0)
            absolute = (await c.get("/limits", version="latest")).json()["limits"]["absolute"]
            assert absolute["totalServerGroupsUsed"] == 3
            for resource, used in (("server_groups", 3), ("server_group_members", 3)):
                refused = await c.put(SET, {"quota_set": {resource: 2}}, as_="admin")
                assert f"already used and reserved {used}" in fault(refused)[2]

    run(scenario())


def test_unknown_projects_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            path = "/os-quota-sets/nowhere"
            body = {"quota_set": {"cores": 1}}
            for answer in (
                await c.get(path, as_="admin"),
                await c.get(f"{path}/detail", as_="admin"),
                await c.get(f"{path}/defaults"),
                await c.put(path, body, as_="admin"),
                await c.put(f"{path}?user_id=u", body, as_="admin"),
            ):
                assert fault(answer) == (400, "badRequest", "Project ID nowhere is not a valid project.")
            # Quotas of a deleted project can be reset.
            assert (await c.delete(path, as_="admin")).status == 202
            assert (await c.get(path)).status == 403

    run(scenario())


@proves("GET /limits")
def test_limits_show_usage(database_url: str) -> None:
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
def test_limits_by_version(sqlite_url: str, version: str, more: set[str]) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            newest = (await c.get("/limits", version="latest")).json()["limits"]["absolute"]
            shown = (await c.get("/limits", version=version)).json()["limits"]["absolute"]
            assert set(shown) - set(newest) == more

    run(scenario())


class TestQuotaCheck:
    def test_error_names_all_exceeded_resources(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url, quota__instances=2, quota__cores=3, quota__ram=-1) as c:
                await put_server(c.db, "a", vcpus=2)
                source = await find_source(c.services, DEMO)
                async with c.db.transaction() as tx:
                    await model.count_within_quota(tx, DEMO, source, {"instances": 1, "cores": 1, "ram": 10**6})
                with pytest.raises(Forbidden) as refused:
                    async with c.db.transaction() as tx:
                        await model.count_within_quota(tx, DEMO, source, {"instances": 2, "cores": 4, "ram": 1})
                assert refused.value.message == (
                    "Quota exceeded for instances, cores: Requested 2, 4, but already used 1, 2 of 2, 3 "
                    "instances, cores"
                )

        run(scenario())

    def test_user_limits_apply(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url, quota__instances=6) as c:
                await put_server(c.db, "a")
                await put_server(c.db, "b", user_id="u")
                async with c.db.transaction() as tx:
                    await model.set_user_limits(tx, DEMO, "u", {"instances": 3, "ram": -1})

                async def count_within_quota(user_id: str | None, least: int = 1) -> int:
                    source = await find_source(c.services, DEMO)
                    async with c.db.transaction() as tx:
                        each = {"instances": 1, "cores": 1, "ram": 1}
                        return await model.count_within_quota(tx, DEMO, source, each, least, 10, user_id=user_id)

                assert await count_within_quota(None) == 4
                assert await count_within_quota("u") == 2
                assert await count_within_quota("v") == 4
                with pytest.raises(Forbidden) as refused:
                    await count_within_quota("u", 3)
                expected = "Quota exceeded for instances: Requested 3, but already used 1 of 3 instances"
                assert refused.value.message == expected
                with pytest.raises(Forbidden) as refused:
                    await count_within_quota("u", 5)
                assert "already used 2 of 6" in refused.value.message

        run(scenario())

    def test_user_limit_of_instances(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1) as c:
                path = f"{SET}?user_id=member-id"
                body = {"quota_set": {"instances": 1, "metadata_items": 1}}
                assert (await c.put(path, body, as_="admin")).status == 200
                await c.boot(as_="member")
                server: dict[str, Any] = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}
                refused = await c.post("/servers", {"server": server}, version="2.96")
                assert fault(refused)[0] == 403
                assert "already used 1 of 1 instances" in fault(refused)[2]
                await c.boot(as_="manager", metadata={"a": "1", "b": "2"})
                server["metadata"] = {"a": "1", "b": "2"}
                refused = await c.post("/servers", {"server": server}, version="2.96")
                assert "2 given, 1 allowed" in fault(refused)[2]

        run(scenario())

    def test_user_limits_of_server_groups_and_key_pairs(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                async with c.db.transaction() as tx:
                    await model.set_user_limits(tx, DEMO, "member-id", {"server_groups": 1, "key_pairs": 0})
                body = {"server_group": {"name": "g", "policy": "affinity"}}
                answers = [await c.post("/os-server-groups", body, as_=as_, version="2.64") for as_ in MANY]
                assert [answer.status for answer in answers] == [200, 403, 200, 200]
                keys = [
                    await c.post("/os-keypairs", {"keypair": {"name": f"k{number}", "public_key": KEY}}, as_=as_)
                    for number, as_ in enumerate(MANY)
                ]
                assert [answer.status for answer in keys] == [403, 403, 200, 200]

        run(scenario())

    def test_concurrent_checks_of_one_project_are_serialized(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url, quota__instances=5) as c:
                source = await find_source(c.services, DEMO)

                async def claim(number: int) -> bool:
                    try:
                        async with c.db.transaction() as tx:
                            await model.count_within_quota(tx, DEMO, source, {"instances": 1})
                            await insert_server(tx, f"s{number}")
                    except Forbidden:
                        return False
                    return True

                assert sum(await asyncio.gather(*(claim(number) for number in range(12)))) == 5
                assert (await model.usage(c.db, DEMO, source))["instances"] == 5

        run(scenario())
