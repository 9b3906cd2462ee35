"""keystoneauth, openstacksdk and the openstack command against the identity service on a real port."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openstack
import pytest
import uvicorn
from keystoneauth1 import exceptions, session
from keystoneauth1.identity import v3
from openstackclient import shell

from tests.identity.support import PASSWORDS, cloud
from tests.support.databases import sqlite_template

Command = Callable[..., Any]


class Server:
    """The service behind uvicorn in its own thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(60)

    async def _serve(self) -> None:
        database = self.directory / "kilonova.db"
        database.write_bytes(sqlite_template().read_bytes())
        async with cloud(f"sqlite://{database}", self.directory) as c:
            config = uvicorn.Config(c.app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
            self._server = uvicorn.Server(config)
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started:
                await asyncio.sleep(0.01)
            port = self._server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._ready.set()
            await serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("identity")) as running:
        yield running


def _login(server: Server, user: str, **scope: Any) -> session.Session:
    auth = v3.Password(
        auth_url=f"{server.url}/identity",
        username=user,
        password=PASSWORDS[user],
        user_domain_name="Default",
        **scope,
    )
    return session.Session(auth=auth)


def test_keystoneauth_gets_tokens_and_endpoints(server: Server) -> None:
    demo = _login(server, "demo", project_name="demo", project_domain_name="Default")
    access = demo.auth.get_access(demo)
    assert access.project_scoped
    assert access.role_names == ["member", "reader"]
    assert demo.get_endpoint(service_type="compute", interface="public") == f"{server.url}/compute/v2.1"
    assert demo.get_endpoint(service_type="identity", version=3) == f"{server.url}/identity/v3/"
    assert demo.get_project_id() == access.project_id
    system = _login(server, "admin", system_scope="all")
    assert system.auth.get_access(system).system_scoped
    unscoped = _login(server, "demo", unscoped=True)
    assert not unscoped.auth.get_access(unscoped).scoped
    rescoped = session.Session(
        auth=v3.Token(f"{server.url}/identity/v3", unscoped.get_token(), project_id=access.project_id)
    )
    assert rescoped.auth.get_access(rescoped).project_name == "demo"
    with pytest.raises(exceptions.Unauthorized):
        _login(server, "demo", project_name="admin", project_domain_name="Default").get_token()


def test_keystoneauth_logs_in_again_after_revocation(server: Server) -> None:
    demo = _login(server, "demo", project_name="demo", project_domain_name="Default")
    first = demo.get_token()
    demo.delete(f"{server.url}/identity/v3/auth/tokens", headers={"X-Subject-Token": first})
    assert demo.get(f"{server.url}/identity/v3/auth/projects").status_code == 200
    assert demo.get_token() != first


def test_openstacksdk_manages_projects_users_and_roles(server: Server) -> None:
    with closing(
        openstack.connect(
            auth_url=f"{server.url}/identity",
            username="admin",
            password=PASSWORDS["admin"],
            project_name="admin",
            user_domain_name="Default",
            project_domain_name="Default",
            region_name="RegionOne",
        )
    ) as cloud_:
        identity = cloud_.identity
        assert {project.name for project in identity.projects()} >= {"admin", "demo", "service"}
        assert identity.find_user("demo").domain_id == "default"
        assert identity.find_domain("Default").id == "default"
        project = identity.create_project(name="sdk", description="d", domain_id="default")
        user = identity.create_user(name="sdk", password="x", default_project_id=project.id, email="a@b")
        role = identity.find_role("member")
        identity.assign_project_role_to_user(project, user, role)
        assert identity.validate_user_has_project_role(project, user, role)
        found = list(identity.role_assignments(scope_project_id=project.id, include_names=True))
        assert [(entry.user["name"], entry.role["name"]) for entry in found] == [("sdk", "member")]
        assert identity.update_user(user, is_enabled=False).is_enabled is False
        identity.unassign_project_role_from_user(project, user, role)
        assert not identity.validate_user_has_project_role(project, user, role)
        assert [p.id for p in identity.projects(name="sdk")] == [project.id]
        identity.delete_user(user)
        identity.delete_project(project)
        assert identity.find_project("sdk") is None
        assert [region.id for region in identity.regions()] == ["RegionOne"]
        assert "compute" in {service.type for service in identity.services()}
        assert cloud_.current_project.name == "admin"


@pytest.fixture
def command(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `openstack …` as a user. Returns its JSON output, or the exit code if it fails."""

    def run_it(*words: str, user: str = "admin", project: str = "admin") -> Any:
        for key, value in (
            ("AUTH_URL", f"{server.url}/identity"),
            ("USERNAME", user),
            ("PASSWORD", PASSWORDS[user]),
            ("PROJECT_NAME", project),
            ("USER_DOMAIN_NAME", "Default"),
            ("PROJECT_DOMAIN_NAME", "Default"),
            ("IDENTITY_API_VERSION", "3"),
        ):
            monkeypatch.setenv(f"OS_{key}", value)
        capsys.readouterr()
        code = shell.main([*words, *(["-f", "json"] if words[-1:] != ("--quiet",) else [])])
        out = capsys.readouterr().out
        return code if code else (json.loads(out) if out.strip() else None)

    return run_it


def _do(command: Command, *words: str) -> None:
    """Run a command that prints nothing."""
    assert not command(*words, "--quiet"), words


def test_openstack_command_reads(server: Server, command: Command) -> None:
    issued = command("token", "issue")
    assert len(issued["id"]) > 100
    types = {entry["Type"]: entry["Endpoints"] for entry in command("catalog", "list")}
    assert types["compute"][0]["url"] == f"{server.url}/compute/v2.1"
    assert {entry["Name"] for entry in command("project", "list")} >= {"admin", "demo", "service"}
    assert command("project", "show", "demo")["name"] == "demo"
    assert {entry["Name"] for entry in command("user", "list")} >= {"admin", "kilonova"}
    assert {entry["Name"] for entry in command("role", "list")} >= {"admin", "service"}
    assert [entry["Name"] for entry in command("domain", "list")] == ["Default"]
    names = {(entry["User"], entry["Role"]) for entry in command("role", "assignment", "list", "--names")}
    assert ("demo@Default", "member") in names
    assert {entry["Type"] for entry in command("service", "list")} >= {"compute", "identity"}
    assert len(command("endpoint", "list", "--service", "compute")) == 3
    assert command("region", "list")[0]["Region"] == "RegionOne"
    assert command("group", "list") == []


def test_openstack_command_as_ordinary_user(server: Server, command: Command) -> None:
    as_demo = {"user": "demo", "project": "demo"}
    project_id = command("token", "issue", **as_demo)["project_id"]
    assert [entry["Name"] for entry in command("project", "list", **as_demo)] == ["demo"]
    assert command("project", "show", project_id, **as_demo)["name"] == "demo"
    assert command("user", "list", **as_demo) == 1


def test_openstack_command_writes(server: Server, command: Command) -> None:
    project = command("project", "create", "lab", "--description", "d", "--tag", "t", "--property", "k=v")
    assert (project["tags"], project["domain_id"]) == (["t"], "default")
    _do(command, "project", "set", "lab", "--description", "e")
    assert command("project", "show", "lab")["description"] == "e"
    user = command("user", "create", "eve", "--password", "x", "--project", "lab", "--email", "e@x")
    assert user["default_project_id"] == project["id"]
    _do(command, "role", "add", "--user", "eve", "--project", "lab", "member")
    found = command("role", "assignment", "list", "--user", "eve", "--project", "lab", "--names", "--effective")
    assert {entry["Role"] for entry in found} == {"member", "reader"}
    _do(command, "user", "set", "eve", "--password", "y", "--disable")
    assert command("user", "show", "eve")["enabled"] is False
    _do(command, "role", "remove", "--user", "eve", "--project", "lab", "member")
    assert command("role", "assignment", "list", "--user", "eve") == []
    _do(command, "role", "add", "--user", "eve", "--system", "all", "reader")
    assert len(command("role", "assignment", "list", "--user", "eve", "--system", "all")) == 1
    assert command("role", "create", "ops")["name"] == "ops"
    _do(command, "role", "delete", "ops")
    _do(command, "user", "delete", "eve")
    _do(command, "project", "delete", "lab")
    assert command("project", "show", "lab") == 1
    token = command("token", "issue")["id"]
    _do(command, "token", "revoke", token)


def test_openstack_command_manages_groups(server: Server, command: Command) -> None:
    command("user", "create", "gil", "--password", "x")
    group = command("group", "create", "crew", "--description", "d")
    assert (group["domain_id"], group["description"]) == ("default", "d")
    _do(command, "group", "add", "user", "crew", "gil")
    assert [entry["Name"] for entry in command("user", "list", "--group", "crew")] == ["gil"]
    assert [entry["Name"] for entry in command("group", "list", "--user", "gil")] == ["crew"]
    _do(command, "role", "add", "--group", "crew", "--project", "demo", "member")
    _do(command, "role", "add", "--group", "crew", "--system", "all", "reader")
    _do(command, "role", "add", "--group", "crew", "--domain", "default", "--inherited", "reader")
    listed = command("role", "assignment", "list", "--group", "crew", "--names")
    assert {(entry["Role"], entry["Project"], entry["Inherited"]) for entry in listed} == {
        ("member", "demo@Default", False),
        ("reader", "", False),
        ("reader", "", True),
    }
    listed = command("role", "assignment", "list", "--user", "gil", "--effective", "--names", "--project", "demo")
    assert {entry["Role"] for entry in listed} == {"member", "reader"}
    _do(command, "role", "remove", "--group", "crew", "--project", "demo", "member")
    _do(command, "group", "remove", "user", "crew", "gil")
    _do(command, "group", "set", "crew", "--name", "gang")
    assert command("group", "show", "gang")["id"] == group["id"]
    _do(command, "group", "delete", "gang")
    _do(command, "user", "delete", "gil")


def test_openstack_command_manages_a_domain(server: Server, command: Command) -> None:
    domain = command("domain", "create", "dome", "--description", "d")
    command("project", "create", "lab", "--domain", "dome")
    command("project", "create", "sub", "--domain", "dome", "--parent", "lab")
    shown = command("project", "show", "sub", "--domain", "dome", "--parents")
    assert list(shown["parents"].values()) == [{domain["id"]: None}]
    role = command("role", "create", "helper", "--domain", "dome")
    assert role["domain_id"] == domain["id"]
    assert [entry["Name"] for entry in command("role", "list", "--domain", "dome")] == ["helper"]
    assert command("domain", "delete", "dome", "--quiet") == 1
    _do(command, "domain", "set", "dome", "--disable")
    _do(command, "domain", "delete", "dome")
    assert command("domain", "show", "dome") == 1


def test_registered_service_is_found_by_stock_clients(server: Server, command: Command) -> None:
    command("service", "create", "infra-optim", "--name", "watcher", "--description", "d")
    url = "http://watcher.test:9322"
    command("endpoint", "create", "watcher", "public", url, "--region", "RegionOne")
    assert [entry["URL"] for entry in command("endpoint", "list", "--service", "watcher")] == [url]
    demo = _login(server, "demo", project_name="demo", project_domain_name="Default")
    assert demo.get_endpoint(service_type="infra-optim", interface="public") == url
    endpoint_id = command("endpoint", "list", "--service", "watcher")[0]["ID"]
    _do(command, "endpoint", "set", endpoint_id, "--url", f"{url}/v1", "--disable")
    shown = command("endpoint", "show", endpoint_id)
    assert (shown["url"], shown["enabled"]) == (f"{url}/v1", False)
    command("region", "create", "West", "--parent-region", "RegionOne")
    _do(command, "region", "set", "West", "--description", "there")
    assert command("region", "show", "West")["description"] == "there"
    _do(command, "region", "delete", "West")
    _do(command, "service", "set", "watcher", "--name", "optimizer")
    _do(command, "service", "delete", "optimizer")
    assert command("endpoint", "show", endpoint_id) == 1
    assert command("service", "delete", "nova", "--quiet") == 1


def test_openstack_command_manages_credentials(server: Server, command: Command) -> None:
    as_demo = {"user": "demo", "project": "demo"}
    made = command("ec2", "credentials", "create", **as_demo)
    assert [entry["Access"] for entry in command("ec2", "credentials", "list", **as_demo)] == [made["access"]]
    assert command("ec2", "credentials", "show", made["access"], **as_demo)["secret"] == made["secret"]
    stored = command("credential", "create", "demo", "a secret", "--type", "totp")
    assert command("credential", "show", stored["id"])["blob"] == "a secret"
    _do(command, "credential", "set", stored["id"], "--user", "demo", "--type", "totp", "--data", "another")
    types = {entry["Type"] for entry in command("credential", "list", "--user", "demo")}
    assert types == {"ec2", "totp"}
    _do(command, "credential", "delete", stored["id"])
    assert not command("ec2", "credentials", "delete", made["access"], "--quiet", **as_demo)
    assert command("credential", "list", "--user", "demo") == []


def test_openstack_command_manages_limits(server: Server, command: Command) -> None:
    command("service", "create", "limited", "--name", "limited")
    of_service = ("--service", "limited", "cores")
    registered = command("registered", "limit", "create", "--default-limit", "10", *of_service)
    assert registered["default_limit"] == 10
    limit = command("limit", "create", "--project", "demo", "--resource-limit", "20", *of_service)
    assert command("limit", "set", limit["id"], "--resource-limit", "30")["resource_limit"] == 30
    assert [entry["Resource Limit"] for entry in command("limit", "list")] == [30]
    assert [entry["Default Limit"] for entry in command("registered", "limit", "list")] == [10]
    _do(command, "limit", "delete", limit["id"])
    _do(command, "registered", "limit", "delete", registered["id"])
    _do(command, "service", "delete", "limited")


def test_keystoneauth_logs_in_by_application_credential(server: Server) -> None:
    demo = _login(server, "demo", project_name="demo", project_domain_name="Default")
    path = f"{server.url}/identity/v3/users/{demo.get_user_id()}/application_credentials"
    body = {"application_credential": {"name": "keystoneauth", "roles": [{"name": "reader"}]}}
    made = demo.post(path, json=body).json()["application_credential"]
    secret = {"application_credential_secret": made["secret"]}
    for given in (
        {"application_credential_id": made["id"]},
        {"application_credential_name": "keystoneauth", "username": "demo", "user_domain_name": "Default"},
    ):
        auth = v3.ApplicationCredential(auth_url=f"{server.url}/identity", **given, **secret)
        program = session.Session(auth=auth)
        access = auth.get_access(program)
        assert (access.project_name, access.role_names) == ("demo", ["reader"])
        assert access.application_credential_id == made["id"]
        assert program.get(path).json()["application_credentials"][0]["name"] == "keystoneauth"
        assert program.post(path, json=body, raise_exc=False).status_code == 403
    demo.delete(f"{path}/{made['id']}")
    with pytest.raises(exceptions.Unauthorized):
        program.get(path)


def test_keystoneauth_logs_in_by_trust(server: Server) -> None:
    demo = _login(server, "demo", project_name="demo", project_domain_name="Default")
    manager = _login(server, "demo-manager", project_name="demo", project_domain_name="Default")
    trusts = f"{server.url}/identity/v3/OS-TRUST/trusts"
    body = {
        "trustor_user_id": demo.get_user_id(),
        "trustee_user_id": manager.get_user_id(),
        "project_id": demo.get_project_id(),
        "impersonation": True,
        "roles": [{"name": "member"}],
    }
    trust = demo.post(trusts, json={"trust": body}).json()["trust"]
    trustee = _login(server, "demo-manager", trust_id=trust["id"])
    access = trustee.auth.get_access(trustee)
    assert access.trust_scoped
    assert (access.trust_id, access.username, access.role_names) == (trust["id"], "demo", ["member", "reader"])
    assert (access.trustor_user_id, access.trustee_user_id) == (demo.get_user_id(), manager.get_user_id())
    demo.delete(f"{trusts}/{trust['id']}")
    with pytest.raises(exceptions.Unauthorized):
        trustee.get(trusts)


def test_openstacksdk_manages_application_credentials_and_logs_in(server: Server) -> None:
    where = {"auth_url": f"{server.url}/identity", "region_name": "RegionOne"}
    with closing(
        openstack.connect(
            **where,
            username="demo",
            password=PASSWORDS["demo"],
            project_name="demo",
            user_domain_name="Default",
            project_domain_name="Default",
        )
    ) as cloud_:
        identity, user = cloud_.identity, cloud_.current_user_id
        rule = {"service": "identity", "method": "GET", "path": "/v3/auth/projects"}
        made = identity.create_application_credential(user, name="sdk", access_rules=[rule], unrestricted=False)
        found = identity.find_application_credential(user, "sdk")
        assert (found.id, found.project_id) == (made.id, cloud_.current_project_id)
        assert [each.path for each in identity.access_rules(user)] == [rule["path"]]
        with closing(
            openstack.connect(
                **where,
                auth_type="v3applicationcredential",
                application_credential_id=made.id,
                application_credential_secret=made.secret,
            )
        ) as program:
            assert program.current_project_id == cloud_.current_project_id
            assert program.session.get(f"{server.url}/identity/v3/auth/projects").status_code == 200
            refused = program.session.get(f"{server.url}/identity/v3/auth/domains", raise_exc=False)
            assert refused.status_code == 401
        identity.delete_application_credential(user, made)
        identity.delete_access_rule(user, next(identity.access_rules(user)))
        assert list(identity.application_credentials(user)) == []


def test_openstack_command_manages_application_credentials(server: Server, command: Command) -> None:
    as_demo = {"user": "demo", "project": "demo"}
    rules = json.dumps([{"path": "/v2.1/servers", "method": "GET", "service": "compute"}])
    made = command(
        *(
            "application",
            "credential",
            "create",
            "ci",
            "--role",
            "member",
            "--description",
            "d",
            "--access-rules",
            rules,
        ),
        *("--expiration", "2099-01-02T03:04:05"),
        **as_demo,
    )
    assert made["Secret"]
    assert made["Expires At"] == "2099-01-02T03:04:05.000000"
    assert [entry["Name"] for entry in command("application", "credential", "list", **as_demo)] == ["ci"]
    shown = command("application", "credential", "show", "ci", **as_demo)
    assert (shown["ID"], shown["Description"]) == (made["ID"], "d")
    assert {role["name"] for role in shown["Roles"]} == {"member", "reader"}
    assert [entry["Path"] for entry in command("access", "rule", "list", **as_demo)] == ["/v2.1/servers"]
    rule_id = command("access", "rule", "list", **as_demo)[0]["ID"]
    assert command("access", "rule", "show", rule_id, **as_demo)["Method"] == "GET"
    assert command("access", "rule", "delete", rule_id, "--quiet", **as_demo) == 1, "in use"
    assert not command("application", "credential", "delete", "ci", "--quiet", **as_demo)
    assert not command("access", "rule", "delete", rule_id, "--quiet", **as_demo)
    assert command("application", "credential", "list", **as_demo) == []


def test_openstack_command_manages_trusts(server: Server, command: Command) -> None:
    # The client looks up users and projects, which administrators may.
    words = ("--project", "admin", "--role", "member", "--impersonate", "--expiration", "2099-01-02T03:04:05")
    made = command("trust", "create", *words, "admin", "demo")
    assert (made["is_impersonation"], made["expires_at"]) == (True, "2099-01-02T03:04:05.000000Z")
    assert [entry["ID"] for entry in command("trust", "list")] == [made["id"]]
    assert [entry["ID"] for entry in command("trust", "list", "--trustee", "demo")] == [made["id"]]
    assert command("trust", "list", "--trustor", "demo") == []
    assert command("trust", "show", made["id"])["trustee_user_id"] == made["trustee_user_id"]
    _do(command, "trust", "delete", made["id"])
    assert command("trust", "show", made["id"]) == 1


def test_openstack_command_manages_trusts_of_an_ordinary_user(server: Server, command: Command) -> None:
    as_demo = {"user": "demo", "project": "demo"}
    ids = command("token", "issue", **as_demo)
    trustee = command("user", "show", "demo-reader")["id"]
    # Without the right to look names up, the client takes them for ids.
    member = command("role", "show", "member")["id"]
    words = ("--project", ids["project_id"], "--role", member, ids["user_id"], trustee)
    made = command("trust", "create", *words, **as_demo)
    listed = command("trust", "list", "--trustor", ids["user_id"], **as_demo)
    assert [entry["ID"] for entry in listed] == [made["id"]]
    assert command("trust", "show", made["id"], user="demo-reader", project="demo")["is_impersonation"] is False
    assert not command("trust", "delete", made["id"], "--quiet", **as_demo)
    assert command("trust", "show", made["id"], **as_demo) == 1


def test_openstack_command_shows_objects_by_id_with_a_domain(server: Server, command: Command) -> None:
    for noun, name in (("user", "demo"), ("project", "demo")):
        found = command(noun, "show", name, "--domain", "Default")
        assert command(noun, "show", found["id"], "--domain", "Default")["name"] == "demo"
