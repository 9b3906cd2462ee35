"""Lists of servers: filters alone and combined, by version and role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from kilonova import clock
from kilonova.ids import new_id
from kilonova.store import TooSlow, postgres, sqlite_search
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, OTHER, Cloud, cloud, fault, insert_server
from tests.support.route_coverage import proves

FLAVOR = {"name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}}
IMAGES = {name: new_id() for name in ("debian", "fedora")}


def nic(*addresses: str, label: str = "private", group: str = "default") -> dict[str, Any]:
    return {
        "port_id": "10101010-1010-1010-1010-101010101010",
        "network_id": "20202020-2020-2020-2020-202020202020",
        "label": label,
        "mac": "fa:16:3e:10:20:30",
        "addresses": list(addresses),
        "security_groups": [group],
        "tag": None,
        "given": False,
    }


def timestamp(hour: int) -> float:
    return clock.parse(f"2026-05-04T{hour:02}:00:00Z")


SERVERS: dict[str, dict[str, Any]] = {
    "web-1": {"image_id": IMAGES["debian"], "nics": [nic("10.0.0.5")], "host": "host1", "key_name": "k1"},
    "web-2": {
        "image_id": IMAGES["debian"],
        "nics": [nic("10.0.0.50", "fd00::5")],
        "host": "host2",
        "vm_state": "stopped",
    },
    "db": {
        "image_id": IMAGES["fedora"],
        "nics": [nic("192.168.1.5", label="10.0.0.5")],
        "host": "host1",
        "flavor_id": "2",
        "image_properties": {"kernel_id": "kernel-1", "ramdisk_id": "ramdisk-1"},
    },
    "broken": {"vm_state": "error", "fault": {"code": 500, "message": "m", "created_at": 1.0}, "user_id": "manager-id"},
    "building": {"vm_state": "building", "pinned_zone": "a", "config_drive": True, "reservation_id": "r-2"},
    "Spaced Näme": {
        "host": "host2",
        "locked": True,
        "locked_by": "owner",
        "description": "what it is for",
        "hostname": "spaced",
    },
    "gone": {"vm_state": "deleted", "deleted": True},
    "theirs": {"project_id": OTHER, "user_id": "other-id", "host": "host1", "nics": [nic("10.0.0.7")]},
}


@asynccontextmanager
async def cloud_with_servers(database_url: str) -> AsyncIterator[Cloud]:
    """A cloud with SERVERS: one is created each hour from midnight on, and updated ten hours later."""
    async with cloud(database_url, hosts=2) as c:
        async with c.db.transaction() as tx:
            for hour, (name, values) in enumerate(SERVERS.items()):
                documents = {
                    key: orjson.dumps(values[key]).decode()
                    for key in ("nics", "fault", "image_properties")
                    if values.get(key) is not None
                }
                times = {
                    "created_at": timestamp(hour),
                    "updated_at": timestamp(hour + 10) + 0.25,
                    "launched_at": timestamp(hour) + 30.5,
                }
                row = {"name": name, "flavor": orjson.dumps(FLAVOR).decode(), **times, **values, **documents}
                await insert_server(tx, new_id(), **row)
        yield c


async def list_names(c: Cloud, query: str = "", **options: Any) -> set[str]:
    """The names in /servers, which are the same as in /servers/detail."""
    brief = await c.get(f"/servers?{query}", **options)
    assert brief.status == 200, brief.body
    detail = await c.get(f"/servers/detail?{query}", **options)
    assert detail.status == 200, detail.body
    found = [server["name"] for server in brief.json()["servers"]]
    assert found == [server["name"] for server in detail.json()["servers"]]
    assert len(set(found)) == len(found)
    return set(found)


OWN = {"web-1", "web-2", "db", "broken", "building", "Spaced Näme"}
NOT_DELETED = OWN | {"theirs"}

# Query, version, names found by a member, names found by an administrator with all_tenants.
FILTERS: list[tuple[str, str, set[str], set[str]]] = [
    ("", "2.1", OWN, NOT_DELETED),
    ("name=web", "2.1", {"web-1", "web-2"}, {"web-1", "web-2"}),
    ("name=WEB", "2.1", set(), set()),
    ("name=^web-[12]$", "2.1", {"web-1", "web-2"}, {"web-1", "web-2"}),
    (
        "name=e",
        "2.1",
        {"web-1", "web-2", "broken", "Spaced Näme"},
        {"web-1", "web-2", "broken", "Spaced Näme", "theirs"},
    ),
    ("name=" + quote("d N.me$"), "2.1", {"Spaced Näme"}, {"Spaced Näme"}),
    ("name=" + quote("web-1|db"), "2.1", {"web-1", "db"}, {"web-1", "db"}),
    ("name=" + quote("b.o%"), "2.1", set(), set()),
    ("status=ACTIVE", "2.1", {"web-1", "db", "Spaced Näme"}, {"web-1", "db", "Spaced Näme", "theirs"}),
    (
        "status=active&status=Error",
        "2.1",
        {"web-1", "db", "Spaced Näme", "broken"},
        {"web-1", "db", "Spaced Näme", "broken", "theirs"},
    ),
    ("status=SHUTOFF&status=BUILD", "2.1", {"web-2", "building"}, {"web-2", "building"}),
    ("status=PAUSED", "2.1", set(), set()),
    ("status=NONSENSE", "2.37", set(), set()),
    ("status=NONSENSE&status=ERROR", "2.37", {"broken"}, {"broken"}),
    ("status=NONSENSE&status=ERROR", "2.38", {"broken"}, {"broken"}),
    (f"image={IMAGES['debian']}", "2.1", {"web-1", "web-2"}, {"web-1", "web-2"}),
    ("image=none", "2.1", set(), set()),
    ("flavor=2", "2.1", {"db"}, {"db"}),
    ("flavor=77", "2.1", set(), set()),
    ("ip=10.0.0.5", "2.1", {"web-1", "web-2"}, {"web-1", "web-2"}),
    ("ip=^10.0.0.5$", "2.1", {"web-1"}, {"web-1"}),
    ("ip=192", "2.1", {"db"}, {"db"}),
    ("ip=^10", "2.1", {"web-1", "web-2"}, {"web-1", "web-2", "theirs"}),
    ("ip=fd00", "2.1", set(), set()),
    ("ip6=fd00::5", "2.5", {"web-2"}, {"web-2"}),
    ("ip6=10.0", "2.5", set(), set()),
    ("ip6=fd00::5", "2.4", OWN, {"web-2"}),
    ("reservation_id=r-2", "2.1", {"building"}, {"building"}),
    ("reservation_id=" + quote("^.-2"), "2.1", {"building"}, {"building"}),
    ("reservation_id=^2", "2.1", set(), set()),
    ("changes-since=2026-05-04T14:30:00Z", "2.1", {"Spaced Näme", "gone"}, {"Spaced Näme", "gone", "theirs"}),
    ("changes-since=2026-05-04T15:00:00", "2.1", {"Spaced Näme", "gone"}, {"Spaced Näme", "gone", "theirs"}),
    ("changes-since=2026-05-04T15:00:01", "2.1", {"gone"}, {"gone", "theirs"}),
    ("changes-before=2026-05-04T10:30:00Z", "2.66", {"web-1"}, {"web-1"}),
    ("changes-before=2026-05-04T10:30:00Z", "2.65", OWN, NOT_DELETED),
    (
        "changes-since=2026-05-04T11:00:00Z&changes-before=2026-05-04T12:00:00Z",
        "2.66",
        {"web-2", "db"},
        {"web-2", "db"},
    ),
    ("changes-before=2026-05-04T09:59:59Z", "2.66", set(), set()),
    ("locked=true", "2.73", {"Spaced Näme"}, {"Spaced Näme"}),
    ("locked=0", "2.73", OWN - {"Spaced Näme"}, NOT_DELETED - {"Spaced Näme"}),
    ("locked=true", "2.72", OWN, NOT_DELETED),
    ("locked=nonsense", "2.72", OWN, NOT_DELETED),
    # The last value of a repeated key counts.
    ("name=db&name=web-1", "2.1", {"web-1"}, {"web-1"}),
    ("limit=1&limit=7", "2.1", OWN, NOT_DELETED),
    # Filters of administrators: ignored for other roles.
    ("host=host1", "2.106", OWN, {"web-1", "db", "theirs"}),
    ("node=host1", "2.106", OWN, set()),
    ("deleted=true", "2.106", OWN, {"gone"}),
    ("uuid=x", "2.106", OWN, set()),
    ("description=what", "2.106", OWN, {"Spaced Näme"}),
    ("launch_index=0", "2.106", OWN, NOT_DELETED),
    ("launch_index=nonsense", "2.106", OWN, set()),
    ("kernel_id=kernel", "2.106", OWN, {"db"}),
    ("kernel_id=^1", "2.106", OWN, set()),
    ("ramdisk_id=" + quote("^r.*-1$"), "2.106", OWN, {"db"}),
    ("locked_by=owner", "2.106", OWN, {"Spaced Näme"}),
    ("auto_disk_config=MANUAL", "2.106", OWN, set()),
    ("auto_disk_config=AUTO", "2.106", OWN, NOT_DELETED),
    ("metadata=x&system_metadata=x&security_groups=x&services=x", "2.106", OWN, NOT_DELETED),
    ("block_device_mapping=x&info_cache=x&pci_devices=x", "2.106", OWN, NOT_DELETED),
    # Filters for all roles since 2.83 and 2.90.
    ("user_id=manager-id", "2.82", OWN, {"broken"}),
    ("user_id=manager-id", "2.83", {"broken"}, {"broken"}),
    ("key_name=k1", "2.82", OWN, {"web-1"}),
    ("key_name=k1", "2.83", {"web-1"}, {"web-1"}),
    ("key_name=" + quote("k[0-9]$"), "2.83", {"web-1"}, {"web-1"}),
    ("root_device_name=sd", "2.106", OWN, set()),
    ("availability_zone=^a$", "2.83", {"building"}, {"building"}),
    ("availability_zone=a", "2.83", OWN - {"broken"}, NOT_DELETED - {"broken"}),
    (
        "availability_zone=" + quote("^n.*a$"),
        "2.83",
        {"web-1", "web-2", "db", "Spaced Näme"},
        {"web-1", "web-2", "db", "Spaced Näme", "theirs"},
    ),
    (
        "availability_zone=nova",
        "2.83",
        {"web-1", "web-2", "db", "Spaced Näme"},
        {"web-1", "web-2", "db", "Spaced Näme", "theirs"},
    ),
    ("config_drive=true", "2.83", {"building"}, {"building"}),
    ("config_drive=No", "2.83", OWN - {"building"}, NOT_DELETED - {"building"}),
    ("config_drive=Tru", "2.83", {"building"}, {"building"}),
    ("config_drive=nonsense", "2.83", set(), set()),
    ("power_state=1", "2.83", OWN, NOT_DELETED),
    ("power_state=4", "2.83", set(), set()),
    ("power_state=four", "2.83", set(), set()),
    ("vm_state=stopped", "2.83", {"web-2"}, {"web-2"}),
    ("task_state=rebooting", "2.83", set(), set()),
    ("created_at=2026-05-04T02:00:00Z", "2.83", {"db"}, {"db"}),
    ("launched_at=2026-05-04T02:00:30Z", "2.83", {"db"}, {"db"}),
    ("launched_at=2026-05-04T02:00:31Z", "2.83", set(), set()),
    ("terminated_at=2026-05-04T02:00:30Z", "2.83", set(), set()),
    ("hostname=spaced", "2.89", OWN, {"Spaced Näme"}),
    ("hostname=spaced", "2.90", {"Spaced Näme"}, {"Spaced Näme"}),
    ("hostname=pac", "2.90", {"Spaced Näme"}, {"Spaced Näme"}),
    # Combined filters must all match.
    ("name=web&status=SHUTOFF", "2.1", {"web-2"}, {"web-2"}),
    ("name=web&ip=10.0&status=ACTIVE&image=" + IMAGES["debian"], "2.1", {"web-1"}, {"web-1"}),
    ("name=web&status=ERROR", "2.1", set(), set()),
    ("unknown=x", "2.74", OWN, NOT_DELETED),
]


@proves("GET /servers", "GET /servers/detail")
def test_each_filter_by_version_and_role(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud_with_servers(database_url) as c:
            for query, version, member, admin in FILTERS:
                assert await list_names(c, query, version=version) == member, (query, version)
                all_projects = f"all_tenants=1&{query}"
                assert await list_names(c, all_projects, version=version, as_="admin") == admin, (query, version)

    run(scenario())


REFUSED = [
    ("2.1", "name=(", 400, "name"),
    ("2.1", "name=" + quote("a{3,1}"), 400, "name"),
    ("2.1", "ip=*", 400, "ip"),
    ("2.1", "limit=-1", 400, "limit"),
    ("2.1", "limit=many", 400, "limit"),
    ("2.1", "limit=", 400, "limit"),
    ("2.1", "marker=unknown", 400, "marker [unknown] not found"),
    ("2.1", "sort_key=color", 400, "color"),
    ("2.1", "sort_key=", 400, "Sort key"),
    ("2.1", "sort_dir=up", 400, "sort_dir"),
    ("2.1", "sort_key=uuid&sort_dir=asc&sort_dir=asc", 400, "sort_dir"),
    ("2.1", "sort_key=host", 403, "host"),
    ("2.1", "sort_key=node", 403, "node"),
    ("2.1", "changes-since=yesterday", 400, "changes-since"),
    ("2.66", "changes-before=yesterday", 400, "changes-before"),
    ("2.66", "changes-since=2026-05-04T12:00:00Z&changes-before=2026-05-04T11:00:00Z", 400, "changes-since"),
    ("2.83", "created_at=yesterday", 400, "created_at"),
    ("2.38", "status=NONSENSE", 400, "NONSENSE"),
    ("2.38", "status=RUBBISH&status=NONSENSE", 400, "NONSENSE"),
    ("2.73", "locked=nonsense", 400, "locked"),
    ("2.73", "locked=", 400, "locked"),
    ("2.83", "config_drive=(", 400, "config_drive"),
    ("2.1", "limit=1&limit=-1", 400, "limit"),
    ("2.1", "limit=-1&limit=1", 400, "limit"),
    ("2.1", "marker=" + IMAGES["debian"] + "&marker=unknown", 400, "marker [unknown] not found"),
    ("2.1", "status=DELETED", 403, "deleted"),
    ("2.1", "all_tenants=1", 403, "get_all_tenants"),
    ("2.1", "all_tenants", 403, "get_all_tenants"),
    ("2.1", "all_tenants=True&project_id=" + DEMO, 403, "get_all_tenants"),
    ("2.1", "all_tenants=nonsense", 400, "all_tenants"),
    ("2.75", "unknown=x", 400, "unknown"),
    ("2.1", "name=%ff", 400, "UTF-8"),
    ("2.1", "name=a%00b", 400, "NUL"),
]


def test_bad_queries_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud_with_servers(database_url) as c:
            for version, query, status, words in REFUSED:
                for path in ("/servers", "/servers/detail"):
                    found, _, message = fault(await c.get(f"{path}?{query}", version=version))
                    assert found == status, (query, message)
                    assert words in message, (query, message)

    run(scenario())


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a**",
            "a+*",
            "a{1}{2}",
            "x{,3}",
            "{",
            "}",
            "a{",
            "]",
            "[]",
            "[]a]",
            "[^]a]",
            "[a-",
            "[z-a]",
            "\\",
            "\\y",
            "\\Z",
        ),
        *(
            "\\m",
            "\\1",
            "\\x",
            "\\u12",
            "(?:a)",
            "(?#c)",
            "(|a)",
            "()",
            "a||b",
            "|",
            "^*",
            "$*",
            "a$b",
            "***=a",
            "(?n)a",
        ),
        *("[[:alpha:]]", "[[:nope:]]", "[[.a.]]", "[[=a=]]", "\\d\\w\\s", "\\bweb", "a{256}", "a{0,999}", ".*" * 40),
    ],
)
def test_no_regular_expression_causes_an_internal_error(database_url: str, pattern: str) -> None:
    async def scenario() -> None:
        async with cloud_with_servers(database_url) as c:
            for key in ("name", "ip"):
                answer = await c.get(f"/servers?{key}={quote(pattern)}")
                assert answer.status in (200, 400), answer.body

    run(scenario())


def test_lists_are_limited_to_the_project_unless_all_tenants(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud_with_servers(database_url) as c:
            for caller in ("reader", "member", "manager", "project-admin"):
                assert await list_names(c, as_=caller) == OWN, caller
            assert await list_names(c, as_="other") == {"theirs"}
            # The administrator's own project has no servers.
            assert await list_names(c, as_="admin") == set()
            assert await list_names(c, "all_tenants=0", as_="admin") == set()
            for value in ("1", "True", "", "yes"):
                assert await list_names(c, f"all_tenants={value}", as_="admin") == NOT_DELETED
            for key in ("project_id", "tenant_id"):
                assert await list_names(c, f"{key}={OTHER}", as_="admin") == set()
                assert await list_names(c, f"all_tenants=1&{key}={OTHER}", as_="admin") == {"theirs"}
                assert await list_names(c, f"all_tenants=1&{key}={ADMIN}", as_="admin") == set()
                assert await list_names(c, f"{key}={OTHER}") == OWN
            assert await list_names(c, "all_tenants=1&deleted=true", as_="admin") == {"gone"}
            assert await list_names(c, "all_tenants=1&status=DELETED", as_="admin") == {"gone"}
            assert await list_names(c, "all_tenants=1&status=deleted&status=error", as_="admin") == {"gone", "broken"}
            assert await list_names(c, "all_tenants=1", as_="system") == NOT_DELETED
            for path in ("/servers", "/servers/detail"):
                assert (await c.get(path, as_="service")).status == 403
                assert (await c.get(path, as_=None)).status == 401

    run(scenario())


def test_soft_deleted_servers_are_left_out_on_request(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud_with_servers(database_url) as c:
            async with c.db.transaction() as tx:
                await insert_server(tx, new_id(), name="soft", vm_state="soft-delete")
            everywhere = "all_tenants=1&deleted=true"
            for more, expected in (
                ("", {"gone", "soft"}),
                ("&soft_deleted=true", {"gone", "soft"}),
                ("&soft_deleted=false", {"gone"}),
            ):
                assert await list_names(c, everywhere + more, as_="admin", version="2.75") == expected
            # Without `deleted` the key has no effect.
            assert await list_names(c, "all_tenants=1&soft_deleted=true", as_="admin") == NOT_DELETED

    run(scenario())


def test_detail_list_equals_show(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud_with_servers(database_url) as c:
            listed = (await c.get("/servers/detail?all_tenants=1", as_="admin", version="2.106")).json()["servers"]
            assert len(listed) == len(NOT_DELETED)
            for server in listed:
                shown = (await c.get(f"/servers/{server['id']}", as_="admin", version="2.106")).json()["server"]
                assert server == {key: value for key, value in shown.items() if key != "server_groups"}
            broken = next(server for server in listed if server["name"] == "broken")
            assert broken["fault"]["message"] == "m"

    run(scenario())


@pytest.mark.parametrize("pattern", ["(.?){2000}x", "((((a+)+)+)+)+", "(x{100}){100}", "a" * 300])
def test_large_pattern_is_refused(database_url: str, pattern: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for key in ("name", "ip"):
                answer = await c.get(f"/servers?{key}={quote(pattern)}")
                assert answer.status == 400
                assert key in answer.json()["badRequest"]["message"]

    run(scenario())


def test_slow_search_is_refused_and_other_requests_go_on(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search in progress leaves the event loop free: other requests are answered before the search is."""
    monkeypatch.setattr(sqlite_search, "SEARCH_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(postgres, "SEARCH_TIMEOUT_SECONDS", 0.5)

    async def scenario() -> None:
        async with cloud(database_url) as c:
            # Counts to a billion on either database.
            endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)"
            search = asyncio.create_task(c.db.search(f"{endless} SELECT COUNT(*) AS i FROM n"))
            answered = 0
            while not search.done():
                assert (await c.get("/flavors")).status == 200
                answered += 1
                await asyncio.sleep(0)
            assert answered > 1
            with pytest.raises(TooSlow):
                await search

    run(scenario())
