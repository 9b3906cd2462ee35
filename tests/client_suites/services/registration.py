"""Registers a service with the cloud, as an administrator does: user, roles, catalogue."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

from tests.support.cloud_process import Client


class Account(NamedTuple):
    user_id: str
    name: str
    password: str


class Registration:
    """Creates objects of the identity service."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        roles = admin.get("auth_url", "/roles").json()["roles"]
        self._roles: dict[str, str] = {role["name"]: role["id"] for role in roles}

    def create(self, noun: str, **values: Any) -> str:
        """Create an object; returns its id."""
        answer = self.admin.post("auth_url", f"/{noun}s", {noun: values})
        assert answer.status == 201, answer.body
        item_id: str = answer.json()[noun]["id"]
        return item_id

    def create_role(self, name: str) -> None:
        self._roles[name] = self.create("role", name=name)

    def create_user(self, name: str, domain_id: str = "default") -> Account:
        password = secrets.token_urlsafe(16)
        return Account(self.create("user", name=name, password=password, domain_id=domain_id), name, password)

    def create_service_user(self, name: str, *roles: str) -> Account:
        """A user with roles in the project of services."""
        account = self.create_user(name)
        project = self.admin.get("auth_url", "/projects?name=service").json()["projects"][0]["id"]
        for role in roles:
            self.assign(f"projects/{project}", account.user_id, role)
        return account

    def assign(self, target: str, user_id: str, role: str) -> None:
        answer = self.admin.request("PUT", "auth_url", f"/{target}/users/{user_id}/roles/{self._roles[role]}")
        assert answer.status == 204, answer.body

    def create_service(self, kind: str, name: str, url: str) -> None:
        service = self.create("service", type=kind, name=name)
        for interface in ("public", "internal", "admin"):
            self.create("endpoint", service_id=service, interface=interface, url=url, region_id="RegionOne")


def credentials(auth_url: str, account: Account) -> dict[str, str]:
    """The settings with which a service logs in."""
    return {
        "auth_type": "password",
        "auth_url": auth_url,
        "username": account.name,
        "password": account.password,
        "user_domain_id": "default",
    }
