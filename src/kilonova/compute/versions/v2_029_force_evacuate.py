"""Evacuation takes `force`. Without it the scheduler verifies a named destination; before, it never did."""

from kilonova.http.versions import Microversion, RequestBody, action


def force_named_host(body: RequestBody) -> RequestBody:
    body["evacuate"]["force"] = "host" in body["evacuate"]
    return body


version = Microversion("2.29", __doc__, [action("evacuate").gains("force", upgrade=force_named_host)])
