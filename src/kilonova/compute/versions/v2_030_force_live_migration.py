"""Live migration takes `force`, without which a named destination is verified by the scheduler; before, none was."""

from typing import Any

from kilonova.http.versions import Microversion, action


def a_named_host_is_forced(body: dict[str, Any]) -> dict[str, Any]:
    asked = body["os-migrateLive"]
    asked["force"] = asked["host"] is not None
    return body


version = Microversion("2.30", __doc__, [action("os-migrateLive").gains("force", upgrade=a_named_host_is_forced)])
