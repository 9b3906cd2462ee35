"""Starting the load on a cloud, and measuring what that costs it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import psutil
from tests.support.process import Cloud

UNLIMITED = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")} | {
    f"KILONOVA_VOLUME_QUOTA__{name}": "-1" for name in ("VOLUMES", "GIGABYTES")
}


def load(cloud: Cloud, what: str, **job: Any) -> Any:
    document = {
        "what": what,
        "url": cloud.endpoints["compute"],
        "auth_url": cloud.endpoints["auth_url"],
        "auth": cloud.clouds["kilonova"]["auth"],
        "how": job,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"], input=orjson.dumps(document), stdout=subprocess.PIPE, check=True
    )
    return orjson.loads(done.stdout)


def measured(cloud: Cloud, what: str, **job: Any) -> tuple[Any, float]:
    """The load's figures, and the CPU seconds that the process spent meanwhile."""
    process = psutil.Process(cloud.pid)
    before = process.cpu_times()
    figures = load(cloud, what, **job)
    after = process.cpu_times()
    return figures, after.user + after.system - before.user - before.system


def share(ordered: list[float], part: float) -> float:
    """The value that this part of all are below."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
