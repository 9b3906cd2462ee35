"""Hooks that schemathesis loads in its own process: see `runner.fuzz`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any

import schemathesis

EXAMPLES_FACTOR = int(os.environ["FUZZ"])
_sent: Counter[Any] = Counter()


@schemathesis.serializer("application/openstack-images-v2.1-json-patch")
def json_patch(ctx: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@schemathesis.hook
def filter_case(ctx: Any, case: Any) -> bool:
    """Send one case of each kind in the coverage phase, which otherwise tries all 29 spellings of a boolean.

    A kind consists of the scenario and the operation or action. For valid requests, which reach handlers, it includes
    the parameter, or the key of the body, with the unusual value. Invalid ones are refused by the schema.
    """
    if case.meta.phase.name != "coverage":
        return True
    data = case.meta.phase.data
    kind: tuple[Any, ...] = (ctx.operation.label, case.method, data.scenario)
    if isinstance(case.body, dict):
        kind += tuple(case.body)
    if case.meta.generation.mode == "positive":
        # For example "Object with valid 'port' value: Object with valid 'name' value: Maximum length string".
        steps = re.sub(r"\b\d+\b", "", data.description).split(": ")
        kind += (data.parameter, *steps[-2 if data.parameter_location == "body" else -1 :])
    _sent[kind] += 1
    return _sent[kind] <= EXAMPLES_FACTOR
