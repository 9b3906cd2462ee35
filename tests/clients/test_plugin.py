"""The plugin of the stock client: `server create --hypervisor-uuid`."""

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

from tests.support.cloud_process import Client, CloudProcess

# A new interpreter, which finds the plugin by its entry point.
OPENSTACK = [str(Path(sys.executable).with_name("openstack"))]
# The same client without hooks.
PLAIN = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'openstack'; from cliff.command import Command; from openstackclient.shell import main;"
    "Command._load_hooks = lambda self: setattr(self, '_hooks', []); sys.exit(main(sys.argv[1:]))",
]
CREATE = "server create --flavor m1.tiny --image cirros-sim --network private"
# Exceeds the quota, so that no server is created.
CREATE_TOO_MANY = f"{CREATE} --min 99 --max 99"
UNKNOWN_UUID = "00000000-0000-4000-8000-00000000000f"
REQUIRED = "--os-compute-api-version 2.105 or greater is required to support the --hypervisor-uuid option"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("plugin") / "data", "--hosts", "3") as running:
        yield running


class ClientRunner:
    """Runs the client as the project's admin, with a command on each line."""

    def __init__(self, program: Path, cloud: CloudProcess) -> None:
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

    def sent_requests(self, script: str, version: str | None = None) -> list[Any]:
        return requests(self(script, version, options=["--debug"]))


@pytest.fixture
def run(openstack: Path, cloud: CloudProcess) -> ClientRunner:
    return ClientRunner(openstack, cloud)


def requests(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Microversion and body of each POST /servers in the --debug output."""
    pattern = r"REQ: curl .*-X POST \S*/servers .*OpenStack-API-Version: compute ([\d.]+).* -d '(.*)'\n"
    return [(version, json.loads(body)["server"]) for version, body in re.findall(pattern, done.stderr)]


def parse_output(done: subprocess.CompletedProcess[str]) -> list[Any]:
    found, rest = [], done.stdout.lstrip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        found.append(value)
        rest = rest[end:].lstrip()
    return found


@pytest.mark.parametrize("version", [None, "2.105", "2.latest"])
def test_option_requests_the_hypervisor(run: ClientRunner, version: str | None) -> None:
    script = f"{CREATE_TOO_MANY} a\n{CREATE_TOO_MANY} --hypervisor-uuid {UNKNOWN_UUID} a"
    (plain_version, plain), (requested_version, requested) = run.sent_requests(script, version)
    assert requested == {**plain, "hypervisor_uuid": UNKNOWN_UUID}
    assert requested_version == "2.105"
    assert plain_version == (version if version == "2.105" else "2.100")  # the newest version of this client


def test_old_microversion_is_refused_without_request(run: ClientRunner) -> None:
    debug = run(f"{CREATE_TOO_MANY} --hypervisor-uuid {UNKNOWN_UUID} a", "2.104", options=["--debug"]).stderr
    assert REQUIRED in debug
    assert "-X POST" not in debug.replace("/auth/tokens", "")


def test_without_option_requests_are_unchanged(run: ClientRunner) -> None:
    """Abbreviations too: `--hypervisor` still means `--hypervisor-hostname`."""
    lines = [
        f"{CREATE_TOO_MANY} a",
        f"{CREATE_TOO_MANY} --hypervisor nobody --host nobody --hint a=b a",
        f"{CREATE_TOO_MANY} --hyper a",
    ]
    lines += ["server delete --help", "flavor list -f json"]
    with_plugin, plain = (run("\n".join(lines), client=client, options=["--debug"]) for client in (OPENSTACK, PLAIN))
    assert len(requests(with_plugin)) == 2
    assert requests(with_plugin)[1][1]["hypervisor_hostname"] == "nobody"
    assert requests(with_plugin) == requests(plain)
    assert with_plugin.stdout == plain.stdout
    assert "found duplicate implementations" not in with_plugin.stderr


def test_help_lists_the_option(run: ClientRunner) -> None:
    done = run("server create --help", client=OPENSTACK)
    assert "--hypervisor-uuid <uuid>" in done.stdout
    assert done.stderr.strip() == ""


def test_option_does_not_affect_next_command(run: ClientRunner) -> None:
    """The client keeps connections for all commands of a session, even after a failure."""
    lines = [
        f"server create --flavor nothing --image cirros-sim --hypervisor-uuid {UNKNOWN_UUID} a",
        f"{CREATE_TOO_MANY} b",
        f"{CREATE_TOO_MANY} --hypervisor-uuid {UNKNOWN_UUID} c",
        f"{CREATE_TOO_MANY} d",
    ]
    bodies = [body for _, body in run.sent_requests("\n".join(lines))]
    assert [(body["name"], body.get("hypervisor_uuid")) for body in bodies] == [
        ("b", None),
        ("c", UNKNOWN_UUID),
        ("d", None),
    ]


def test_project_admin_boots_on_assigned_hypervisor(cloud: CloudProcess, run: ClientRunner) -> None:
    admin = cloud.client("kilonova")
    assigned = _assign(admin, cloud.client("kilonova-demo").project_id, "sim-002")
    others = [found["id"] for found in _hypervisors(admin) if found["id"] != assigned]
    lines = ["hypervisor list -f json"]
    lines += [f"{CREATE} --hypervisor-uuid {uuid} -f json a" for uuid in (assigned, *others, UNKNOWN_UUID)]
    done = run("\n".join(lines), "2.105")
    listed, server = parse_output(done)
    assert [(found["ID"], found["State"]) for found in listed] == [(assigned, "up")]
    assert server["hypervisor_uuid"] == assigned
    assert admin.wait(server["id"], status="ACTIVE")["OS-EXT-SRV-ATTR:host"] == "sim-002"
    errors = [re.sub(r"[0-9a-f-]{36}", "UUID", line) for line in done.stderr.splitlines() if line.strip()]
    assert len(errors) == 3, done.stderr
    assert len(set(errors)) == 1, done.stderr
    assert "400" in errors[0]


def _hypervisors(admin: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.get("compute", "/os-hypervisors", version="2.53").json()["hypervisors"]
    return found


def _assign(admin: Client, project_id: str, host: str) -> str:
    """Assign the host to the project by an aggregate. Returns the id of its hypervisor."""
    created = admin.post("compute", "/os-aggregates", {"aggregate": {"name": "assigned"}}).json()["aggregate"]
    path = f"/os-aggregates/{created['id']}/action"
    metadata = {"set_metadata": {"metadata": {"filter_tenant_id": project_id}}}
    for body in (metadata, {"add_host": {"host": host}}):
        assert admin.post("compute", path, body).status == 200
    (hypervisor,) = [found for found in _hypervisors(admin) if found["hypervisor_hostname"] == host]
    return str(hypervisor["id"])


def test_plugin_imports_nothing_of_the_service() -> None:
    code = "import sys, kilonova.client.server_create; print(*sorted(m for m in sys.modules if '{}' in m))"
    for name, expected in (("kilonova", "kilonova kilonova.client kilonova.client.server_create"), ("openstack", "")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == expected


def test_client_without_create_server_is_refused() -> None:
    """A client without `create_server` would ignore the hypervisor."""
    from osc_lib.exceptions import CommandError

    from kilonova.client.server_create import OnHypervisor

    manager = SimpleNamespace(compute=SimpleNamespace(servers=None), sdk_connection=None)
    command: Any = SimpleNamespace(app=SimpleNamespace(client_manager=manager))
    options: Any = SimpleNamespace(hypervisor_uuid=UNKNOWN_UUID)
    with pytest.raises(CommandError, match="too old"):
        OnHypervisor(command).before(options)
