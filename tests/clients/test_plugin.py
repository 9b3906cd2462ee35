"""What Kilonova adds to the stock client: `server create --hypervisor-uuid`, and nothing that is not asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.process import Client, Cloud

# A new interpreter, which finds the plugin as users' clients do.
OPENSTACK = [str(Path(sys.executable).with_name("openstack"))]
# The same client, deaf to hooks.
PLAIN = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'openstack'; from cliff.command import Command; from openstackclient.shell import main;"
    "Command._load_hooks = lambda self: setattr(self, '_hooks', []); sys.exit(main(sys.argv[1:]))",
]
CREATE = "server create --flavor m1.tiny --image cirros-sim --network private"
# More than the quota: asked for, but never made.
TOO_MANY = f"{CREATE} --min 99 --max 99"
NOBODY = "00000000-0000-4000-8000-00000000000f"
REQUIRED = "--os-compute-api-version 2.105 or greater is required to support the --hypervisor-uuid option"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("plugin") / "data", "--hosts", "3") as running:
        yield running


class Run:
    """One run of the client by the project's admin, with a command on each line."""

    def __init__(self, program: Path, cloud: Cloud) -> None:
        self.program = program
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
        self.environ |= {"OS_CLOUD": "kilonova-demo-admin", "OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml")}

    def __call__(
        self,
        script: str,
        version: str | None = None,
        *,
        client: Sequence[str] | None = None,
        options: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        chosen = {"OS_COMPUTE_API_VERSION": version} if version is not None else {}
        return subprocess.run(
            [*(client or [str(self.program)]), *options],
            input=script,
            env={**self.environ, **chosen},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def sent(self, script: str, version: str | None = None) -> list[Any]:
        return requests(self(script, version, options=["--debug"]))


@pytest.fixture
def run(openstack: Path, cloud: Cloud) -> Run:
    return Run(openstack, cloud)


def requests(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Version and body of every request for a new server that a run with --debug tells of."""
    pattern = r"REQ: curl .*-X POST \S*/servers .*OpenStack-API-Version: compute ([\d.]+).* -d '(.*)'\n"
    return [(version, json.loads(body)["server"]) for version, body in re.findall(pattern, done.stderr)]


def shown(done: subprocess.CompletedProcess[str]) -> list[Any]:
    found, rest = [], done.stdout.lstrip()
    while rest:
        one, end = json.JSONDecoder().raw_decode(rest)
        found.append(one)
        rest = rest[end:].lstrip()
    return found


@pytest.mark.parametrize("version", [None, "2.105", "2.latest"])
def test_the_hypervisor_is_asked_for(run: Run, version: str | None) -> None:
    script = f"{TOO_MANY} a\n{TOO_MANY} --hypervisor-uuid {NOBODY} a"
    (plain_version, plain), (asked_version, asked) = run.sent(script, version)
    assert asked == {**plain, "hypervisor_uuid": NOBODY}
    assert asked_version == "2.105"
    assert plain_version == (version if version == "2.105" else "2.100")  # the newest that this client knows


def test_an_older_version_is_refused_before_anything_is_sent(run: Run) -> None:
    debug = run(f"{TOO_MANY} --hypervisor-uuid {NOBODY} a", "2.104", options=["--debug"]).stderr
    assert REQUIRED in debug
    assert "-X POST" not in debug.replace("/auth/tokens", "")


def test_without_the_option_the_command_is_the_stock_one(run: Run) -> None:
    """Abbreviated options too: `--hypervisor` means the name, as ever."""
    lines = [f"{TOO_MANY} a", f"{TOO_MANY} --hypervisor nobody --host nobody --hint a=b a", f"{TOO_MANY} --hyper a"]
    lines += ["server delete --help", "flavor list -f json"]
    told, plain = (run("\n".join(lines), client=client, options=["--debug"]) for client in (OPENSTACK, PLAIN))
    assert len(requests(told)) == 2
    assert requests(told)[1][1]["hypervisor_hostname"] == "nobody"
    assert requests(told) == requests(plain)
    assert told.stdout == plain.stdout
    assert "found duplicate implementations" not in told.stderr


def test_the_help_names_the_option(run: Run) -> None:
    done = run("server create --help", client=OPENSTACK)
    assert "--hypervisor-uuid <uuid>" in done.stdout
    assert done.stderr.strip() == ""


def test_one_command_leaves_nothing_to_the_next(run: Run) -> None:
    """The client keeps its connections for all commands of a session, also after one that failed half way."""
    lines = [
        f"server create --flavor nothing --image cirros-sim --hypervisor-uuid {NOBODY} a",
        f"{TOO_MANY} b",
        f"{TOO_MANY} --hypervisor-uuid {NOBODY} c",
        f"{TOO_MANY} d",
    ]
    bodies = [body for _, body in run.sent("\n".join(lines))]
    assert [(body["name"], body.get("hypervisor_uuid")) for body in bodies] == [("b", None), ("c", NOBODY), ("d", None)]


def test_a_project_admin_boots_on_a_hypervisor_of_the_project(cloud: Cloud, run: Run) -> None:
    admin = cloud.client("kilonova")
    mine = _assign(admin, cloud.client("kilonova-demo").project_id, "sim-002")
    others = [found["id"] for found in _hypervisors(admin) if found["id"] != mine]
    lines = ["hypervisor list -f json"]
    lines += [f"{CREATE} --hypervisor-uuid {uuid} -f json a" for uuid in (mine, *others, NOBODY)]
    done = run("\n".join(lines), "2.105")
    listed, server = shown(done)
    assert [(found["ID"], found["State"]) for found in listed] == [(mine, "up")]
    assert server["hypervisor_uuid"] == mine
    assert admin.wait(server["id"], status="ACTIVE")["OS-EXT-SRV-ATTR:host"] == "sim-002"
    complaints = [re.sub(r"[0-9a-f-]{36}", "UUID", line) for line in done.stderr.splitlines() if line.strip()]
    assert len(complaints) == 3, done.stderr
    assert len(set(complaints)) == 1, done.stderr
    assert "400" in complaints[0]


def _hypervisors(admin: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.get("compute", "/os-hypervisors", version="2.53").json()["hypervisors"]
    return found


def _assign(admin: Client, project_id: str, host: str) -> str:
    """Put the host into an aggregate of the project's; its hypervisor's uuid."""
    made = admin.post("compute", "/os-aggregates", {"aggregate": {"name": "theirs"}}).json()["aggregate"]
    path = f"/os-aggregates/{made['id']}/action"
    metadata = {"set_metadata": {"metadata": {"filter_tenant_id": project_id}}}
    for body in (metadata, {"add_host": {"host": host}}):
        assert admin.post("compute", path, body).status == 200
    (found,) = [one["id"] for one in _hypervisors(admin) if one["hypervisor_hostname"] == host]
    identity: str = found
    return identity


def test_the_plugin_loads_nothing_of_the_service() -> None:
    code = "import sys, kilonova.client.server_create; print(*sorted(m for m in sys.modules if '{}' in m))"
    for name, expected in (("kilonova", "kilonova kilonova.client kilonova.client.server_create"), ("openstack", "")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == expected


def test_a_client_whose_command_goes_another_way_is_refused() -> None:
    """One that has no such method would boot the server anywhere."""
    from osc_lib.exceptions import CommandError

    from kilonova.client.server_create import OnHypervisor

    manager = SimpleNamespace(compute=SimpleNamespace(servers=None), sdk_connection=None)
    command: Any = SimpleNamespace(app=SimpleNamespace(client_manager=manager))
    options: Any = SimpleNamespace(hypervisor_uuid=NOBODY)
    with pytest.raises(CommandError, match="too old"):
        OnHypervisor(command).before(options)
