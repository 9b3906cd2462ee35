"""Live migration takes `force`. Without it the scheduler verifies a named destination; before, it never did."""

from kilonova.http.versions import Microversion, RequestBody, action


def force_named_host(body: RequestBody) -> RequestBody:
    requested = body["os-migrateLive"]
    requested["force"] = requested["host"] is not None
    return body


version = Microversion("2.30", __doc__, [action("os-migrateLive").gains("force", upgrade=force_named_host)])
