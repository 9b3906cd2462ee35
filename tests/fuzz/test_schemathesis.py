"""Schemathesis on the OpenAPI document of a running service: no response is a 500, and each matches the document.

`FUZZ=20` sends up to twenty times as many requests, `FUZZ_SEED` changes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.runner import add_known_values, fuzz
from tests.fuzz.support import count_statuses, fuzzed_cloud, new_database
from tests.support.cloud_process import Client, CloudProcess

REMOVED_SUMMARY = "Removed: always 410."


@pytest.mark.parametrize(
    "database, user, version, phases, examples",
    [
        ("sqlite", "kilonova", "latest", "examples,coverage,fuzzing", 2),
        ("postgresql", "kilonova", "2.1", "examples,fuzzing", 2),
        ("sqlite", "kilonova-demo", "2.47", "examples,fuzzing", 2),
        ("postgresql", "kilonova-demo", "latest", "examples,fuzzing", 1),
    ],
)
def test_responses_match_the_document(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, user: str, version: str, phases: str, examples: int
) -> None:
    server = request.getfixturevalue("postgresql_server") if database == "postgresql" else None
    with fuzzed_cloud(tmp_path / "data", new_database(server) if server else "") as cloud:
        client = cloud.client(user)
        fuzz(
            tmp_path,
            client.endpoints["compute"].removesuffix("/v2.1"),
            client,
            document_with_known_values(cloud, client, version),
            version=f"compute {version}",
            phases=phases,
            examples=examples,
            checks="all",
        )
        assert_many_successes(cloud)


def test_frozen_root(tmp_path: Path) -> None:
    """Below /v2 unknown keys are dropped instead of refused, so fewer checks apply."""
    with fuzzed_cloud(tmp_path / "data") as cloud:
        client = cloud.client("kilonova-demo-admin")
        document = document_with_known_values(cloud, client, "2.1")
        document["paths"] = {path.replace("/v2.1/", "/v2/"): methods for path, methods in document["paths"].items()}
        url = client.endpoints["compute"].removesuffix("/v2.1")
        checks = "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance"
        fuzz(tmp_path, url, client, document, phases="examples,fuzzing", examples=2, checks=checks)
        assert_many_successes(cloud)


def assert_many_successes(cloud: CloudProcess) -> None:
    """Check that enough of the requests succeeded."""
    counts = count_statuses(cloud)
    assert sum(count for status, count in counts.items() if status < 300) > 50, counts
    # Two requests to each operation check that a token is needed.
    assert counts[401] + counts[406] < sum(counts.values()) / 3, counts


def document_with_known_values(cloud: CloudProcess, client: Client, version: str) -> Any:
    """The served document, with names of existing resources."""
    document = client.request_url(
        "GET", client.endpoints["compute"].replace("/v2.1", f"/openapi.json?version={version}")
    ).json()
    assert version in (document["info"]["version"], "latest")
    _drop_removed_paths(document)
    add_known_values(document, _create_resources(cloud, client))
    return document


def _drop_removed_paths(document: Any) -> None:
    """Keep three of the removed paths, which are a third of all and respond alike."""
    removed = [path for path, methods in document["paths"].items() if _is_removed(methods)]
    for path in removed[3:]:
        del document["paths"][path]


def _is_removed(methods: Any) -> bool:
    return any(isinstance(each, dict) and each["summary"] == REMOVED_SUMMARY for each in methods.values())


def _create_resources(cloud: CloudProcess, client: Client) -> dict[str, list[str]]:
    """Create resources of every kind; returns their names by parameter or key."""
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
    operator = cloud.client("kilonova-system")
    hosts = [
        str(found["id"])
        for version in ("2.1", "latest")
        for found in operator.get("compute", "/os-hypervisors", version=version).json()["hypervisors"][:2]
    ]
    services = [
        str(found["id"])
        for version in ("2.1", "latest")
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
