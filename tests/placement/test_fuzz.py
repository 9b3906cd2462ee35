"""Schemathesis with the API's OpenAPI document: no response is a 500 or undocumented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.runner import add_known_values, fuzz
from tests.fuzz.support import count_statuses, fuzzed_cloud, new_database
from tests.support.cloud_process import Client, CloudProcess

CONSUMER = "33333333-3333-4333-8333-333333333333"


@pytest.mark.parametrize(
    "database, version, phases",
    [
        ("sqlite", "1.39", "examples,coverage,fuzzing"),
        ("postgresql", "1.0", "examples,coverage"),
        ("postgresql", "1.18", "examples,fuzzing"),
    ],
)
def test_responses_match_openapi_document(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, version: str, phases: str
) -> None:
    server = request.getfixturevalue("postgresql_server") if database == "postgresql" else None
    with fuzzed_cloud(tmp_path / "data", new_database(server) if server else "") as cloud:
        client = cloud.client("kilonova")
        url = client.endpoints["placement"]
        document = client.request_url("GET", f"{url}/openapi.json?version={version}").json()
        del document["paths"]["/openapi.json"]  # its errors do not depend on the version
        add_known_values(document, create_objects(client))
        fuzz(tmp_path, url, client, document, version=f"placement {version}", phases=phases, examples=3, checks="all")
        check_route_counts(cloud)


def create_objects(client: Client) -> dict[str, list[str]]:
    """Create objects of every kind; their names by parameter or key."""
    latest = {"headers": {"OpenStack-API-Version": "placement 1.39"}}
    for path in ("/traits/CUSTOM_A", "/resource_classes/CUSTOM_A"):
        client.put("placement", path, None, **latest)
    created = client.post("placement", "/resource_providers", {"name": "a"}, **latest).json()
    hosts = client.get("placement", "/resource_providers", **latest).json()["resource_providers"]
    providers = [created["uuid"], *(host["uuid"] for host in hosts[:2])]
    return {
        "uuid": providers,
        "in_tree": providers,
        "parent_provider_uuid": providers,
        "consumer_uuid": [CONSUMER],
        "resource_class": ["VCPU", "CUSTOM_A"],
        "name": ["CUSTOM_A"],
        "resources": ["VCPU:1", "VCPU:1,MEMORY_MB:512"],
        "required": ["CUSTOM_A"],
    }


def check_route_counts(cloud: CloudProcess) -> None:
    counts = count_statuses(cloud)
    assert sum(count for status, count in counts.items() if status < 300) > 30, counts
