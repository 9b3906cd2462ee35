"""Evacuation takes `force`, without which a named destination is verified by the scheduler; before, none was."""

from typing import Any

from kilonova.http.versions import Microversion, action


def a_named_host_is_forced(body: dict[str, Any]) -> dict[str, Any]:
    body["evacuate"]["force"] = "host" in body["evacuate"]
    return body


version = Microversion("2.29", __doc__, [action("evacuate").gains("force", upgrade=a_named_host_is_forced)])
