"""Runs `bench.load` against a cloud and measures the CPU time that the cloud spends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import psutil
from tests.support.cloud_process import CloudProcess

UNLIMITED = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")} | {
    f"KILONOVA_VOLUME_QUOTA__{name}": "-1" for name in ("VOLUMES", "GIGABYTES")
}


def load_document(cloud: CloudProcess, job: str, **options: Any) -> dict[str, Any]:
    """The job, the cloud and the options, as `bench.load` reads them from stdin."""
    return {
        "job": job,
        "url": cloud.endpoints["compute"],
        "auth_url": cloud.endpoints["auth_url"],
        "auth": cloud.clouds["kilonova"]["auth"],
        "options": options,
    }


def run_load(cloud: CloudProcess, job: str, **options: Any) -> Any:
    document = orjson.dumps(load_document(cloud, job, **options))
    done = subprocess.run([sys.executable, "-m", "bench.load"], input=document, stdout=subprocess.PIPE, check=True)
    return orjson.loads(done.stdout)


def run_measured(cloud: CloudProcess, job: str, **options: Any) -> tuple[Any, float]:
    """The results of the load, and the CPU seconds that the cloud's process has spent."""
    process = psutil.Process(cloud.pid)
    before = process.cpu_times()
    results = run_load(cloud, job, **options)
    after = process.cpu_times()
    return results, after.user + after.system - before.user - before.system


def quantile(ordered: list[float], fraction: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
