"""Registers Kilonova in a Keystone: the service user with its roles, and the services in the catalogue.

Every step finds first what exists, so that a repeated registration changes nothing. All that could be refused is
checked before the first change.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import quote

from msgspec import Struct

from kilonova.identity.administrator import Administrator, RegistrationError
from kilonova.identity.own_services import INTERFACES, OwnService
from kilonova.unified_limits import SERVICE_TYPE

# The roles of the service user in its own project: `service` for requests that services alone may send, `admin` for
# objects of all projects. docs/existing-cloud.md lists the requests.
OWN_ROLES = ("admin", "service")
# Its role in the projects of users, where it creates volumes and images for their servers.
MEMBER = "member"
Json = dict[str, Any]
Action = Literal["created", "updated", "unchanged"]


class Wanted(Struct, frozen=True, kw_only=True):
    """What to register. `urls` are the base URLs of Kilonova by interface, `domains` names or ids (none: all)."""

    username: str
    password: str
    user_domain: str
    project: str
    project_domain: str
    region: str
    services: tuple[OwnService, ...]
    urls: Mapping[str, str]
    domains: tuple[str, ...] = ()
    # Registered limits of compute, by resource. Existing ones keep their values.
    limits: Mapping[str, int] = {}

    def __repr__(self) -> str:
        # Without the password.
        return f"Wanted(username={self.username!r})"


class Permissions(Struct, frozen=True):
    """What a registration may do besides creating what is missing."""

    dry_run: bool = False
    replace: bool = False
    update_password: bool = False


class Change(Struct, frozen=True):
    """`undo` is the command of the stock client that reverts a change of the catalogue."""

    action: Action
    kind: str
    name: str
    detail: str = ""
    undo: str = ""


class _Service(Struct):
    """A service with its entries in the catalogue, for one region."""

    wanted: OwnService
    found: Json | None
    endpoints: list[Json]


class Registration:
    """One registration. In a dry run, ids of objects that it would create are empty."""

    def __init__(
        self, administrator: Administrator, wanted: Wanted, permissions: Permissions, changes: list[Change]
    ) -> None:
        self._keystone = administrator
        self._wanted = wanted
        self._may = permissions
        self._changes = changes

    async def run(self) -> None:
        """Adds to `changes`, also if it raises RegistrationError or Unreachable."""
        wanted = self._wanted
        user_domain = await self._keystone.get_domain(wanted.user_domain)
        project_domain = await self._keystone.get_domain(wanted.project_domain)
        domains = await self._domains()
        user = await self._keystone.find("user", name=wanted.username, domain_id=user_domain["id"])
        has_password = await self._check_user(user)
        services = [await self._find_service(service) for service in wanted.services]
        self._check_endpoints(services)
        project_id = await self._ensure("project", wanted.project, domain_id=project_domain["id"])
        user_id = await self._ensure_user(user, user_domain["id"], has_password)
        await self._ensure_roles(user_id, project_id, domains)
        await self._ensure_region()
        for service in services:
            service_id = await self._ensure_service(service)
            if service.wanted.type == SERVICE_TYPE:
                await self._ensure_limits(service_id)

    # The user and its roles

    async def _domains(self) -> list[Json]:
        if self._wanted.domains:
            return [await self._keystone.get_domain(name) for name in dict.fromkeys(self._wanted.domains)]
        return [domain for domain in await self._keystone.list("domain") if domain["enabled"]]

    async def _check_user(self, user: Json | None) -> bool:
        """Whether the user exists with the wanted password."""
        name = self._wanted.username
        if user is None:
            return False
        if not user["enabled"]:
            raise RegistrationError(f"the user {name} is disabled: openstack user set --enable {user['id']}")
        if await self._keystone.is_password(user["id"], self._wanted.password):
            return True
        if not self._may.update_password:
            raise RegistrationError(
                f"the user {name} exists with another password: write it into identity.password, or give"
                " --update-password to set the configured one"
            )
        return False

    async def _ensure_user(self, user: Json | None, domain_id: str, has_password: bool) -> str:
        wanted = self._wanted
        if user is None:
            fields = {"domain_id": domain_id, "password": wanted.password, "description": "Kilonova"}
            return await self._create("user", wanted.username, **fields)
        if has_password:
            self._note("unchanged", "user", wanted.username)
        else:
            await self._update("user", user["id"], wanted.username, {"password": wanted.password}, "password")
        return str(user["id"])

    async def _ensure_roles(self, user_id: str, project_id: str, domains: list[Json]) -> None:
        wanted = self._wanted
        roles = {name: await self._ensure("role", name) for name in (*OWN_ROLES, MEMBER)}
        for name in OWN_ROLES:
            path = f"/projects/{project_id}/users/{user_id}/roles/{roles[name]}"
            known = bool(project_id and user_id and roles[name])
            await self._grant(path, known, f"{name} of {wanted.username} in the project {wanted.project}")
        for domain in domains:
            path = f"/OS-INHERIT/domains/{domain['id']}/users/{user_id}/roles/{roles[MEMBER]}/inherited_to_projects"
            text = f"{MEMBER} of {wanted.username} in all projects of the domain {domain['name']}"
            await self._grant(path, bool(user_id and roles[MEMBER]), text)

    async def _grant(self, path: str, known: bool, text: str) -> None:
        if known and await self._keystone.has_grant(path):
            self._note("unchanged", "role assignment", text)
            return
        if not self._may.dry_run:
            await self._keystone.grant(path)
        self._note("created", "role assignment", text)

    # The catalogue

    async def _ensure_region(self) -> None:
        region = self._wanted.region
        if await self._keystone.has_region(region):
            self._note("unchanged", "region", region)
            return
        if not self._may.dry_run:
            await self._keystone.create("region", {"id": region})
        self._note("created", "region", region)

    async def _find_service(self, wanted: OwnService) -> _Service:
        """The service of the type, and its endpoints in the region.

        If several services have the type, it is the first with an endpoint in the region: clients find that one, too.
        """
        services = await self._keystone.list("service", type=wanted.type)
        found = [(one, await self._endpoints(one)) for one in services]
        with_endpoints = [one for one in found if one[1]]
        if len(with_endpoints) > 1:
            ids = ", ".join(str(one["id"]) for one, _ in with_endpoints)
            raise RegistrationError(
                f"the catalogue has {len(with_endpoints)} services of the type {wanted.type} with endpoints in the"
                f" region {self._wanted.region}: {ids}; delete all but one (openstack service delete ID)"
            )
        for service, endpoints in with_endpoints or found:
            return _Service(wanted, service, endpoints)
        return _Service(wanted, None, [])

    async def _endpoints(self, service: Json) -> list[Json]:
        listed = await self._keystone.list("endpoint", service_id=service["id"], region_id=self._wanted.region)
        return [endpoint for endpoint in listed if endpoint["interface"] in INTERFACES]

    def _url(self, service: OwnService, interface: str) -> str:
        return self._wanted.urls[interface].rstrip("/") + service.url

    def _is_right(self, service: OwnService, endpoint: Json) -> bool:
        return bool(endpoint["enabled"] and endpoint["url"].rstrip("/") == self._url(service, endpoint["interface"]))

    def _check_endpoints(self, services: Iterable[_Service]) -> None:
        """Endpoints with another URL may be those of another compute service, which must not vanish by mistake."""
        others = [
            f"  {service.wanted.type} {endpoint['interface']}: {_describe(endpoint)}"
            for service in services
            for endpoint in service.endpoints
            if not self._is_right(service.wanted, endpoint)
        ]
        if others and not self._may.replace:
            lines = "\n".join(others)
            raise RegistrationError(
                f"the catalogue has other endpoints in the region {self._wanted.region}:\n{lines}\n"
                "Give --replace to have them point to Kilonova. Clients then do not reach the other service."
            )

    async def _ensure_service(self, service: _Service) -> str:
        wanted, found = service.wanted, service.found
        if found is None:
            service_id = await self._create("service", wanted.name, type=wanted.type)
        elif found["enabled"]:
            service_id = found["id"]
            self._note("unchanged", "service", found.get("name") or wanted.type, wanted.type)
        else:
            service_id = found["id"]
            undo = f"openstack service set --disable {service_id}"
            await self._update("service", service_id, found["name"], {"enabled": True}, "enabled", undo)
        for interface in INTERFACES:
            await self._ensure_endpoint(service, service_id, interface)
        return str(service_id)

    async def _ensure_limits(self, service_id: str) -> None:
        scope = {"service_id": service_id, "region_id": self._wanted.region}
        known = set()
        if service_id and self._wanted.limits:
            found = await self._keystone.list("registered_limit", service_id=service_id)
            # Those without a region apply to all.
            known = {one["resource_name"] for one in found if one["region_id"] in (None, scope["region_id"])}
        for name, value in self._wanted.limits.items():
            if name in known:
                self._note("unchanged", "registered limit", name)
                continue
            if not self._may.dry_run:
                await self._keystone.register_limit({**scope, "resource_name": name, "default_limit": value})
            self._note("created", "registered limit", name, str(value))

    async def _ensure_endpoint(self, service: _Service, service_id: str, interface: str) -> None:
        name, url = f"{service.wanted.type} {interface}", self._url(service.wanted, interface)
        existing = [endpoint for endpoint in service.endpoints if endpoint["interface"] == interface]
        for endpoint in existing:
            if self._is_right(service.wanted, endpoint):
                self._note("unchanged", "endpoint", name, url)
                continue
            undo = f"openstack endpoint set --url {shlex.quote(endpoint['url'])} {endpoint['id']}"
            if not endpoint["enabled"]:
                undo += " --disable"
            detail = f"{url}, before: {_describe(endpoint)}"
            await self._update("endpoint", endpoint["id"], name, {"url": url, "enabled": True}, detail, undo)
        if existing:
            return
        undo = ""
        if not self._may.dry_run:
            fields = {"service_id": service_id, "interface": interface, "region_id": self._wanted.region, "url": url}
            created = await self._keystone.create("endpoint", fields)
            undo = f"openstack endpoint delete {created['id']}"
        self._note("created", "endpoint", name, url, undo)

    # Objects of any kind

    def _note(self, action: Action, kind: str, name: str, detail: str = "", undo: str = "") -> None:
        self._changes.append(Change(action, kind, name, detail, undo))

    async def _ensure(self, kind: str, name: str, **fields: str) -> str:
        found = await self._keystone.find(kind, name=name, **fields)
        if found is None:
            return await self._create(kind, name, **fields)
        self._note("unchanged", kind, name)
        return str(found["id"])

    async def _create(self, kind: str, name: str, **fields: str) -> str:
        created_id = undo = ""
        if not self._may.dry_run:
            created_id = str((await self._keystone.create(kind, {"name": name, **fields}))["id"])
            undo = f"openstack service delete {created_id}" if kind == "service" else ""
        self._note("created", kind, name, fields.get("type", ""), undo)
        return created_id

    async def _update(self, kind: str, item_id: str, name: str, fields: Json, detail: str, undo: str = "") -> None:
        if not self._may.dry_run:
            await self._keystone.update(kind, quote(item_id, safe=""), fields)
        self._note("updated", kind, name, detail, undo)


def _describe(endpoint: Json) -> str:
    return str(endpoint["url"]) + ("" if endpoint["enabled"] else " (disabled)")
