"""Runs schemathesis against a cloud process, with names of existing resources among its values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fuzz.support import EXAMPLES_FACTOR, SEED
from tests.support.cloud_process import Client

SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))
# The size of a body is checked before its content, and unsupported features are 501.
SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 413, 415]
[phases.coverage]
unexpected-methods = ["patch", "put"]
"""
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
# Cache of Hypothesis's character tables, which take a second to create.
HYPOTHESIS_DIRECTORY = Path(__file__).parents[2] / ".hypothesis"
REQUEST_TIMEOUT_SECONDS = 60


def fuzz(
    directory: Path,
    url: str,
    client: Client,
    document: Any,
    *,
    version: str = "",
    phases: str,
    examples: int,
    checks: str,
) -> None:
    """Run schemathesis; fails with its report."""
    (directory / "settings.toml").write_text(SETTINGS)
    (directory / "openapi.json").write_text(json.dumps(document))
    options = {
        "--url": url,
        "--phases": phases,
        "--checks": checks,
        # Random names rarely exist, so valid requests may be refused.
        "--exclude-checks": "positive_data_acceptance",
        "--max-examples": str(examples * EXAMPLES_FACTOR),
        "--seed": str(SEED),
        "--request-timeout": str(REQUEST_TIMEOUT_SECONDS),
        "--generation-database": "none",
        "--suppress-health-check": "all",
        "--warnings": "off",
        "--header": f"X-Auth-Token: {client.token}",
    }
    flags = ["--no-color", "--no-shrink", "--continue-on-failure"]
    if version:
        flags.append(f"--header=OpenStack-API-Version: {version}")
    run = subprocess.run(
        [
            *(SCHEMATHESIS, "--config-file", "settings.toml", "run", "openapi.json", *flags),
            *(f"{name}={value}" for name, value in options.items()),
        ],
        cwd=directory,
        # A small environment: the HTTP client searches it for proxies at each request.
        env={
            "PATH": os.defpath,
            "FUZZ": str(EXAMPLES_FACTOR),
            "SCHEMATHESIS_HOOKS": str(HOOKS),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(HYPOTHESIS_DIRECTORY),
        },
        capture_output=True,
        text=True,
        timeout=1800 * EXAMPLES_FACTOR,  # only exceeded by a hang
        check=False,
    )
    assert run.returncode == 0, _readable(run.stdout + run.stderr)
    assert "No issues found" in run.stdout, _readable(run.stdout)


def _readable(output: str) -> str:
    _, _, failures = output.rpartition("= FAILURES =")
    return "\n".join(line[:300] for line in failures.splitlines())[:20000]


def add_known_values(document: Any, names: dict[str, list[str]]) -> None:
    """Add these values to the schemas of path parameters and of body keys."""
    for methods in document["paths"].values():
        for parameter in methods.get("parameters", ()):
            if parameter["name"] in names:
                parameter["schema"] = {"anyOf": [{"enum": names[parameter["name"]]}, parameter["schema"]]}
                parameter["examples"] = {name: {"value": name} for name in names[parameter["name"]]}
    _add_known_values(document["paths"], names)


def _add_known_values(schema: Any, names: dict[str, list[str]]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _add_known_values(each, names)
    if not isinstance(schema, dict):
        return
    for each in list(schema.values()):
        _add_known_values(each, names)
    properties = schema.get("properties", {})
    for key in names.keys() & properties.keys():
        properties[key] = {"anyOf": [{"enum": names[key]}, properties[key]]}
