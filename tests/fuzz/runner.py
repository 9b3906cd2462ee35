"""Running schemathesis against a real process, with the names of things that are there among the values it tries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fuzz.support import MORE, SEED
from tests.support.process import Client

SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))
# A body may be too large before it is looked at, and what hosts do not report is 501.
SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 413, 415]
[phases.coverage]
unexpected-methods = ["patch", "put"]
"""
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
# Hypothesis keeps its tables of characters there. To make them takes a second.
TABLES = Path(__file__).parents[2] / ".hypothesis"
SECONDS_A_REQUEST = 60


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
    """Fails with what schemathesis has to say."""
    (directory / "settings.toml").write_text(SETTINGS)
    (directory / "openapi.json").write_text(json.dumps(document))
    options = {
        "--url": url,
        "--phases": phases,
        "--checks": checks,
        # Random names are seldom those of something that is there, so valid requests may well be refused.
        "--exclude-checks": "positive_data_acceptance",
        "--max-examples": str(examples * MORE),
        "--seed": str(SEED),
        "--request-timeout": str(SECONDS_A_REQUEST),
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
        # No more than that: the HTTP client looks through all of it for proxies, at each request.
        env={
            "PATH": os.defpath,
            "FUZZ": str(MORE),
            "SCHEMATHESIS_HOOKS": str(HOOKS),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(TABLES),
        },
        capture_output=True,
        text=True,
        timeout=1800 * MORE,  # a hang, not a busy machine
        check=False,
    )
    assert run.returncode == 0, _readable(run.stdout + run.stderr)
    assert "No issues found" in run.stdout, _readable(run.stdout)


def _readable(output: str) -> str:
    _, _, failures = output.rpartition("= FAILURES =")
    return "\n".join(line[:300] for line in failures.splitlines())[:20000]


def prime(document: Any, names: dict[str, list[str]]) -> None:
    """Let path parameters and keys of bodies take these values as well as any other."""
    for methods in document["paths"].values():
        for parameter in methods.get("parameters", ()):
            if parameter["name"] in names:
                parameter["schema"] = {"anyOf": [{"enum": names[parameter["name"]]}, parameter["schema"]]}
                parameter["examples"] = {name: {"value": name} for name in names[parameter["name"]]}
    _prime(document["paths"], names)


def _prime(schema: Any, names: dict[str, list[str]]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _prime(each, names)
    if not isinstance(schema, dict):
        return
    for each in list(schema.values()):
        _prime(each, names)
    properties = schema.get("properties", {})
    for key in names.keys() & properties.keys():
        properties[key] = {"anyOf": [{"enum": names[key]}, properties[key]]}
