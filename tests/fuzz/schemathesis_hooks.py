"""What schemathesis loads in its own process: see `runner.fuzz`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any

import schemathesis

MORE = int(os.environ["FUZZ"])
_sent: Counter[Any] = Counter()


@schemathesis.serializer("application/openstack-images-v2.1-json-patch")
def json_patch(ctx: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@schemathesis.hook
def filter_case(ctx: Any, case: Any) -> bool:
    """Sends one case of each kind in the coverage phase, which would else try all 29 spellings of a boolean.

    A kind is what the phase does, to which operation or action. Of valid requests it is also the parameter, or the key
    of the body, with the unusual value: handlers see them. Invalid ones end at the schema that the document is made of.
    """
    if case.meta.phase.name != "coverage":
        return True
    data = case.meta.phase.data
    kind: tuple[Any, ...] = (ctx.operation.label, case.method, data.scenario)
    if isinstance(case.body, dict):
        kind += tuple(case.body)
    if case.meta.generation.mode == "positive":
        # As "Object with valid 'port' value: Object with valid 'name' value: Maximum length string".
        steps = re.sub(r"\b\d+\b", "", data.description).split(": ")
        kind += (data.parameter, *steps[-2 if data.parameter_location == "body" else -1 :])
    _sent[kind] += 1
    return _sent[kind] <= MORE
