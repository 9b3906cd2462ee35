"""The compute API on a real database, with fixed tokens instead of an identity service.

async with cloud(database_url, hosts=3) as c:
    answer = await c.get("/flavors", as_="member", version="2.61")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from kilonova import compute
from kilonova.compute.flavors import model as flavors
from kilonova.compute.status import ComputeStatus
from kilonova.config import load
from kilonova.hosts.messages import HostFacts, Inventory
from kilonova.hosts.registry import register
from kilonova.http import Api, App
from kilonova.http.client import ClientResponse, InProcess
from kilonova.identity.client import Auth
from kilonova.network import build as build_network
from kilonova.network.client import NetworkClient
from kilonova.policy import Policy
from kilonova.policy.credentials import Credentials
from kilonova.services import Services
from kilonova.store import Database, Transaction
from tests.support.databases import opened
from tests.support.route_coverage import RecordingMetrics

TIMEOUT_SECONDS = 60.0
DEMO, OTHER, ADMIN = "d" * 32, "0" * 32, "a" * 32
FLAVOR = '{"name":"m1.tiny","vcpus":1,"ram":512,"disk":1,"ephemeral":0,"swap":0,"extra_specs":{}}'
_IMPLIED_ROLES = {
    "admin": {"admin", "manager", "member", "reader"},
    "manager": {"manager", "member", "reader"},
    "member": {"member", "reader"},
    "reader": {"reader"},
    "service": {"service"},
}


def make_credentials(name: str, role: str, project_id: str | None, *, system: bool = False) -> Credentials:
    return Credentials(
        user_id=f"{name}-id",
        user_name=name,
        user_domain_id="default",
        user_domain_name="Default",
        project_id=project_id,
        project_name=name if project_id == ADMIN else project_id,
        project_domain_id="default" if project_id else None,
        system=system,
        roles=frozenset(_IMPLIED_ROLES[role]),
    )


TOKENS = {
    "admin": make_credentials("admin", "admin", ADMIN),
    "system": make_credentials("admin", "admin", None, system=True),
    "system-reader": make_credentials("auditor", "reader", None, system=True),
    "project-admin": make_credentials("project-admin", "admin", DEMO),
    "manager": make_credentials("manager", "manager", DEMO),
    "member": make_credentials("member", "member", DEMO),
    "reader": make_credentials("reader", "reader", DEMO),
    "other": make_credentials("other", "member", OTHER),
    "service": make_credentials("service", "service", ADMIN),
    # The service user in its own project, and below in projects of users.
    "kilonova": msgspec.structs.replace(
        make_credentials("admin", "admin", ADMIN), roles=frozenset(_IMPLIED_ROLES["admin"] | _IMPLIED_ROLES["service"])
    ),
    **{f"admin@{project_id}": make_credentials("admin", "admin", project_id) for project_id in (DEMO, OTHER)},
}


class Tokens:
    """Accepts the names of TOKENS as tokens."""

    async def validate(self, token: str) -> Credentials | None:
        return TOKENS.get(token)


class Identity:
    """An identity service with three projects. `Tokens` accepts the tokens that it issues."""

    projects = frozenset({DEMO, OTHER, ADMIN})

    async def token(self) -> str:
        return "kilonova"

    async def auth(self, project_id: str | None = None) -> Auth:
        if project_id is None or project_id == ADMIN:
            return Auth("kilonova", ADMIN, is_service=True)
        return Auth(f"admin@{project_id}", project_id)

    async def has_project(self, project_id: str) -> bool:
        return project_id in self.projects


class Cloud:
    def __init__(self, services: Services, apis: Iterable[Api]) -> None:
        self.services = services
        self.app = App(services, apis)
        self.caller = InProcess(self.app)

    @property
    def db(self) -> Database:
        return self.services.db

    async def request(
        self,
        method: str,
        path: str,
        *,
        as_: str | None = "member",
        version: str | None = None,
        root: str = "/compute/v2.1",
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
    ) -> ClientResponse:
        all_headers = dict(headers or {})
        if as_ is not None:
            all_headers["X-Auth-Token"] = as_
        if version is not None:
            all_headers["OpenStack-API-Version"] = f"compute {version}"
        return await self.caller.request(method, root + path, headers=all_headers, json=json, content=content)

    async def get(self, path: str, **options: Any) -> ClientResponse:
        return await self.request("GET", path, **options)

    async def post(self, path: str, json: Any, **options: Any) -> ClientResponse:
        return await self.request("POST", path, json=json, **options)

    async def put(self, path: str, json: Any, **options: Any) -> ClientResponse:
        return await self.request("PUT", path, json=json, **options)

    async def delete(self, path: str, **options: Any) -> ClientResponse:
        return await self.request("DELETE", path, **options)

    async def item(self, path: str, **options: Any) -> dict[str, Any]:
        """The only value in the body of the response."""
        response = await self.get(path, **options)
        assert response.status == 200, response.body
        (shown,) = response.json().values()
        return dict(shown)

    async def until(self, path: str, met: Callable[[dict[str, Any]], bool], **options: Any) -> dict[str, Any]:
        """Poll the path until `met` returns true; return the shown resource."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not met(shown := await self.item(path, **options)):
                await asyncio.sleep(0.01)
        return shown

    async def gone(self, path: str, **options: Any) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await self.get(path, **options)).status != 404:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def cloud(
    database_url: str, *, hosts: int = 0, process_host: str | None = None, **flags: Any
) -> AsyncIterator[Cloud]:
    """`flags` are configuration keys with two underscores for the dot: `quota__instances=1`."""
    services = Services()
    services.config = load(environ={}, flags={name.replace("__", "."): value for name, value in flags.items()})
    services.policy = Policy()
    services.tokens = Tokens()
    services.identity = Identity()  # type: ignore[assignment]
    services.metrics = RecordingMetrics()
    async with opened(database_url) as db:
        services.db = db
        services.compute_status = ComputeStatus(db, services.config)
        async with db.transaction() as tx:
            await flavors.seed(tx)
        if hosts or process_host:
            await register(db, [host(f"host{number}") for number in range(1, hosts + 1)], process_host=process_host)
        created = Cloud(services, [compute.build(), build_network()])
        services.network = NetworkClient(InProcess(created.app, "/network"))
        yield created


def host(name: str, vcpus: int = 8, memory_mb: int = 16384, disk_gb: int = 100) -> HostFacts:
    return HostFacts(
        host=name,
        hypervisor_hostname=f"{name}.example",
        hypervisor_type="sim",
        hypervisor_version=1000,
        host_ip="10.0.0.1",
        cpu_info={"arch": "x86_64", "model": "sim", "vendor": "Kilonova", "topology": {"sockets": 1}},
        inventory={
            "VCPU": Inventory(total=vcpus, max_unit=vcpus, allocation_ratio=4.0),
            "MEMORY_MB": Inventory(total=memory_mb, max_unit=memory_mb, reserved=512),
            "DISK_GB": Inventory(total=disk_gb, max_unit=disk_gb),
        },
    )


async def put_server(db: Database, server_id: str, **values: Any) -> None:
    """Insert a server's row without running an operation."""
    async with db.transaction() as tx:
        await insert_server(tx, server_id, **values)


async def insert_server(tx: Transaction, server_id: str, **values: Any) -> None:
    row = {
        "id": server_id,
        "project_id": DEMO,
        "user_id": "member-id",
        "name": server_id,
        "hostname": server_id,
        "vm_state": "active",
        "power_state": 1,
        "flavor_id": "1",
        "flavor": FLAVOR,
        "vcpus": 1,
        "ram": 512,
        "image_properties": "{}",
        "metadata": "{}",
        "nics": "[]",
        "scheduler_hints": "{}",
        "config_drive": False,
        "disk_config": "AUTO",
        "reservation_id": "r-1",
        "launch_index": 0,
        "locked": False,
        "deleted": False,
        "created_at": 1.0,
        "updated_at": 1.0,
        **values,
    }
    placeholders = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await tx.execute(f"INSERT INTO servers ({', '.join(row)}) VALUES ({placeholders})", *row.values())


def fault(answer: ClientResponse) -> tuple[int, str, str]:
    """Status, kind and message of an error in the Compute API's format."""
    body = answer.json()
    (kind,) = body
    assert body[kind]["code"] == answer.status
    return answer.status, kind, body[kind]["message"]
