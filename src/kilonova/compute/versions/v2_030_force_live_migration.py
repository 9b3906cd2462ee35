"""Live migration takes `force`. Without it the scheduler verifies a named destination; before, it never did."""

from typing import Any

from kilonova.http.versions import Microversion, action


def force_named_host(body: dict[str, Any]) -> dict[str, Any]:
    requested = body["os-migrateLive"]
    requested["force"] = requested["host"] is not None
    return body


version = Microversion("2.30", __doc__, [action("os-migrateLive").gains("force", upgrade=force_named_host)])
