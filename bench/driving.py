"""Starting the load on a cloud."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
from tests.support.process import Cloud

UNLIMITED = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")}


def load(cloud: Cloud, what: str, **job: Any) -> Any:
    document = {
        "what": what,
        "url": cloud.endpoints["compute"],
        "auth_url": cloud.endpoints["auth_url"],
        "auth": cloud.clouds["kilonova"]["auth"],
        **job,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"], input=orjson.dumps(document), stdout=subprocess.PIPE, check=True
    )
    return orjson.loads(done.stdout)
