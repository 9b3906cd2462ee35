"""Schemathesis over the OpenAPI document of a running service: whatever the document allows or forbids, no answer is a
500, none is missing, and each is as the document says. Every request has ten seconds.

`FUZZ=20` sends twenty times as many, `FUZZ_SEED` others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.support import MORE, SEED, new_database, victim
from tests.support.process import Client, Cloud

SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))
# Random names are seldom those of something that is there, so valid requests may well be refused. A body may be too
# large before it is looked at, and what hosts do not report is 501.
SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 413, 415]
"""
SECONDS_A_REQUEST = 10


@pytest.mark.parametrize(
    "database, user, version, phases, examples",
    [
        ("sqlite", "kilonova", "2.106", "examples,coverage,fuzzing", 8),
        ("postgresql", "kilonova", "2.1", "examples,coverage,fuzzing", 8),
        ("sqlite", "kilonova", "2.47", "fuzzing", 8),
        ("sqlite", "kilonova-demo", "2.1", "fuzzing", 4),
        ("postgresql", "kilonova-demo", "2.47", "examples,coverage", 4),
        ("postgresql", "kilonova-demo", "2.106", "fuzzing", 4),
    ],
)
def test_nothing_unexpected(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, user: str, version: str, phases: str, examples: int
) -> None:
    server = request.getfixturevalue("postgresql_server") if database == "postgresql" else None
    with victim(tmp_path / "data", new_database(server) if server else "") as cloud:
        client = cloud.client(user)
        (tmp_path / "settings.toml").write_text(SETTINGS)
        (tmp_path / "openapi.json").write_text(json.dumps(primed(cloud, client, version)))
        run = schemathesis(tmp_path, client, version, phases, examples * MORE)
        assert run.returncode == 0, _readable(run.stdout + run.stderr)
        assert "No issues found" in run.stdout, _readable(run.stdout)


def schemathesis(
    directory: Path, client: Client, version: str, phases: str, examples: int
) -> subprocess.CompletedProcess[str]:
    options = {
        "--url": client.endpoints["compute"].removesuffix("/v2.1"),
        "--phases": phases,
        "--checks": "all",
        "--exclude-checks": "positive_data_acceptance",
        "--max-examples": str(examples),
        "--seed": str(SEED),
        "--request-timeout": str(SECONDS_A_REQUEST),
        "--generation-database": "none",
        "--suppress-health-check": "all",
        "--warnings": "off",
    }
    headers = [f"--header=X-Auth-Token: {client.token}", f"--header=OpenStack-API-Version: compute {version}"]
    flags = [*headers, "--no-color", "--no-shrink", "--continue-on-failure"]
    return subprocess.run(
        [
            *(SCHEMATHESIS, "--config-file", "settings.toml", "run", "openapi.json", *flags),
            *(f"{name}={value}" for name, value in options.items()),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120 * MORE,
        check=False,
    )


def _readable(output: str) -> str:
    _, _, failures = output.rpartition("= FAILURES =")
    return "\n".join(line[:300] for line in failures.splitlines())[:20000]


def primed(cloud: Cloud, client: Client, version: str) -> Any:
    """The document as served, with the names of things that are there among the values to try."""
    document = client.plain(
        "GET", client.endpoints["compute"].replace("/v2.1", f"/openapi.json?version={version}")
    ).json()
    assert document["info"]["version"] == version
    names = _furnish(cloud, client)
    for methods in document["paths"].values():
        for parameter in methods.get("parameters", ()):
            if parameter["name"] in names:
                parameter["schema"] = {"anyOf": [{"enum": names[parameter["name"]]}, parameter["schema"]]}
                parameter["examples"] = {name: {"value": name} for name in names[parameter["name"]]}
    _prime(document["paths"], names)
    return document


def _prime(schema: Any, names: dict[str, list[str]]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _prime(each, names)
    if not isinstance(schema, dict):
        return
    for each in schema.values():
        _prime(each, names)
    properties = schema.get("properties", {})
    for key in names.keys() & properties.keys():
        properties[key] = {"anyOf": [{"enum": names[key]}, properties[key]]}


def _furnish(cloud: Cloud, client: Client) -> dict[str, list[str]]:
    """Things of every kind, by the parameter or key that names them."""
    admin = cloud.client("kilonova")
    flavor = {"name": "fuzz", "id": "fuzz", "ram": 64, "vcpus": 1, "disk": 1}
    private = {**flavor, "name": "private", "id": "private", "os-flavor-access:is_public": False}
    admin.post("compute", "/flavors", {"flavor": flavor})
    admin.post("compute", "/flavors", {"flavor": private})
    admin.post("compute", "/flavors/fuzz/os-extra_specs", {"extra_specs": {"hw:cpu_policy": "shared", "own": "x"}})
    client.post("compute", "/os-keypairs", {"keypair": {"name": "key"}})
    image = client.get("image", "/images").json()["images"][0]["id"]
    network = client.get("network", "/networks?name=private").json()["networks"][0]["id"]
    body = {"name": "fuzz", "imageRef": image, "flavorRef": "1", "networks": [{"uuid": network}]}
    made = [client.post("compute", "/servers", {"server": body}) for _ in range(3)]
    assert [answer.status for answer in made] == [202] * 3, made[0].body
    hosts = [
        str(found["id"])
        for version in ("2.1", "2.106")
        for found in admin.get("compute", "/os-hypervisors", version=version).json()["hypervisors"][:2]
    ]
    services = [
        str(found["id"])
        for version in ("2.1", "2.106")
        for found in admin.get("compute", "/os-services", version=version).json()["services"][-2:]
    ]
    return {
        "server_id": [answer.json()["server"]["id"] for answer in made],
        "flavor_id": ["fuzz", "private", "1"],
        "hypervisor_id": hosts,
        "service_id": services,
        "project_id": [client.project_id],
        "name": ["key", "default"],
        "key": ["own", "hw:cpu_policy"],
        "imageRef": [image],
        "flavorRef": ["1", "fuzz"],
        "key_name": ["key"],
        "uuid": [network, image],
        "availability_zone": ["nova"],
    }
