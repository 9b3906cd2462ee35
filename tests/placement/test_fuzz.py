"""Schemathesis over the API's own document: whatever it allows or forbids, no answer is a 500 or as it is not said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.runner import fuzz, prime
from tests.fuzz.support import answers, new_database, victim
from tests.support.process import Client, Cloud

CONSUMER = "33333333-3333-4333-8333-333333333333"


@pytest.mark.parametrize(
    "database, version, phases",
    [
        ("sqlite", "1.39", "examples,coverage,fuzzing"),
        ("postgresql", "1.0", "examples,coverage"),
        ("postgresql", "1.18", "examples,fuzzing"),
    ],
)
def test_nothing_unexpected(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, version: str, phases: str
) -> None:
    server = request.getfixturevalue("postgresql_server") if database == "postgresql" else None
    with victim(tmp_path / "data", new_database(server) if server else "") as cloud:
        client = cloud.client("kilonova")
        url = client.endpoints["placement"]
        document = client.plain("GET", f"{url}/openapi.json?version={version}").json()
        del document["paths"]["/openapi.json"]  # its errors are of no version
        prime(document, furnished(client))
        fuzz(tmp_path, url, client, document, version=f"placement {version}", phases=phases, examples=3, checks="all")
        assert_worth(cloud)


def furnished(client: Client) -> dict[str, list[str]]:
    """Things of every kind, by the parameter or key that names them."""
    latest = {"headers": {"OpenStack-API-Version": "placement 1.39"}}
    for path in ("/traits/CUSTOM_A", "/resource_classes/CUSTOM_A"):
        client.put("placement", path, None, **latest)
    made = client.post("placement", "/resource_providers", {"name": "a"}, **latest).json()
    hosts = client.get("placement", "/resource_providers", **latest).json()["resource_providers"]
    providers = [made["uuid"], *(host["uuid"] for host in hosts[:2])]
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


def assert_worth(cloud: Cloud) -> None:
    counts = answers(cloud)
    assert sum(count for status, count in counts.items() if status < 300) > 30, counts
