"""A hypervisor's `cpu_info` is an object, no longer JSON inside a string."""

from kilonova.compute.hypervisors.model import ShownHypervisor
from kilonova.http import Context
from kilonova.http.versions import Microversion, view


def as_text(shown: ShownHypervisor, ctx: Context) -> str:
    import json

    return json.dumps(shown.hypervisor.cpu_info)


version = Microversion(
    "2.28", __doc__, [view("hypervisor").changes("cpu_info", before=as_text, schema={"type": "string"})]
)
