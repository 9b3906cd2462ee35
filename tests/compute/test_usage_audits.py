"""Usage audits: the number of servers of each host in a month."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from kilonova import clock
from kilonova.compute.usage_audits import last_month_before
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.route_coverage import proves

PATH = "/os-instance_usage_audit_log"


async def audit(c: Cloud, before: str | None = None) -> Any:
    answer = await c.get(PATH if before is None else f"{PATH}/{quote(before)}", as_="admin")
    assert answer.status == 200, answer.body
    ((key, found),) = answer.json().items()
    assert key == ("instance_usage_audit_logs" if before is None else "instance_usage_audit_log")
    return found


async def put(c: Cloud, number: int, host: str | None, began: str, ended: str | None = None) -> None:
    await put_server(
        c.db,
        f"{number:08d}-0000-4000-8000-000000000000",
        host=host,
        launched_at=clock.parse(began),
        terminated_at=clock.parse(ended) if ended else None,
        deleted=ended is not None,
    )


async def set_created_at(c: Cloud, host: str, when: str) -> None:
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET created_at = $2 WHERE host = $1", host, clock.parse(when))


@proves("GET /os-instance_usage_audit_log/{before}")
def test_servers_are_counted_by_host(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=4) as c:
            for host, when in (("host1", "2025-01-01"), ("host2", "2026-01-30"), ("host3", "2026-02-01")):
                await set_created_at(c, host, when)
            await set_created_at(c, "host4", "2026-02-02")
            await put(c, 1, "host1", "2025-12-01")
            await put(c, 2, "host1", "2025-12-01", "2025-12-31T23:59:59")  # ended before
            await put(c, 3, "host1", "2026-01-31T23:59:59", "2026-02-01")
            await put(c, 4, "host2", "2026-02-01")  # begun after
            await put(c, 5, "host4", "2026-01-05")  # has moved since
            await put(c, 6, None, "2026-01-05")
            for before in ("2026-02-01 00:00:00", "2026-02-28 23:59:59.999999"):
                found = await audit(c, before)
                log = found.pop("log")
                assert found == {
                    "period_beginning": "2026-01-01 00:00:00",
                    "period_ending": "2026-02-01 00:00:00",
                    "num_hosts": 3,  # host3 is newer
                    "num_hosts_done": 3,
                    "num_hosts_running": 0,
                    "num_hosts_not_run": 0,
                    "hosts_not_run": [],
                    "total_instances": 3,
                    "total_errors": 0,
                    "overall_status": "ALL hosts done. 0 errors.",
                }
                assert {host: entry["instances"] for host, entry in log.items()} == {"host1": 2, "host2": 0, "host4": 1}
                message = "Instance usage audit ran for host host1, 2 instances."
                assert log["host1"] == {"state": "DONE", "instances": 2, "errors": 0, "message": message}

    run(scenario())


@proves("GET /os-instance_usage_audit_log")
def test_last_complete_month(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = clock.now()
    monkeypatch.setattr(clock, "now", lambda: moment)

    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            fresh = await audit(c)
            assert (fresh["num_hosts"], fresh["hosts_not_run"], fresh["log"]) == (0, [], {})
            assert fresh["overall_status"] == "ALL hosts done. 0 errors."
            now = datetime.fromtimestamp(moment, UTC)
            assert fresh["period_ending"] == f"{now.year}-{now.month:02d}-01 00:00:00"
            await set_created_at(c, "host1", "2020-01-01")
            assert (await audit(c))["num_hosts_done"] == 1
            # A month that has not ended has no audits.
            early = await audit(c, "2999-05-05 00:00:00")
            assert (early["hosts_not_run"], early["overall_status"]) == (["host1"], "0 of 1 hosts done. 0 errors.")

    run(scenario())


@pytest.mark.parametrize(
    ("moment", "expected"),
    [("2026-01-01T00:00:00", "2025-12-01"), ("2024-03-31T12:00:00", "2024-02-01"), ("2026-12-31", "2026-11-01")],
)
def test_periods(moment: str, expected: str) -> None:
    assert last_month_before(clock.parse(moment)).beginning.strftime("%Y-%m-%d") == expected


def test_invalid_times_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for as_ in ("member", "manager", "reader"):
                assert (await c.get(PATH, as_=as_)).status == 403
                assert (await c.get(f"{PATH}/{quote('2026-01-01 00:00:00')}", as_=as_)).status == 403
            for wrong in ("invalid_time", "2026-13-01 00:00:00", "2026-01-01", "0001-01-01 00:00:00"):
                answer = await c.get(f"{PATH}/{quote(wrong)}", as_="admin")
                assert fault(answer)[:2] == (400, "badRequest"), wrong

    run(scenario())
