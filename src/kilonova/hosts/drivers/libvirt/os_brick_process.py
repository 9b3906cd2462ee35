"""The process that calls os-brick: reads a request from standard input, and writes the result to standard output.

os-brick imports eventlet and configures oslo libraries, which do not fit into the agent. Its functions run with the
privileges of this process, without the privilege daemon that they could have.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any, Literal, TypedDict


class Request(TypedDict, total=False):
    """`data` are the properties of the connection, `device` the result of an earlier `connect`."""

    verb: Literal["properties", "connect", "disconnect", "extend"]
    lock_path: str
    host: str
    ip: str
    multipath: bool
    kind: str
    data: dict[str, Any]
    device: dict[str, Any] | None
    mount_path: str
    ignore_errors: bool


def main() -> None:
    request: Request = json.load(sys.stdin)
    # Libraries may print.
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        document: dict[str, object] = {"result": _call(request)}
    except Exception as error:
        document = {"error": error_text(error)}
    with os.fdopen(output, "w") as file:
        json.dump(document, file, default=str)


def _call(request: Request) -> Any:
    connector = _os_brick(request["lock_path"])
    multipath = request.get("multipath", False)
    if request["verb"] == "properties":
        return connector.get_connector_properties(
            "", request["ip"], multipath, enforce_multipath=multipath, host=request["host"]
        )
    kind, data = request["kind"], request["data"]
    options: dict[str, Any] = {"use_multipath": multipath, "conn": data}
    if mount_path := request.get("mount_path"):
        options[f"{kind}_mount_point_base"] = mount_path
    one = connector.InitiatorConnector.factory(kind.upper(), "", **options)
    if request["verb"] == "connect":
        return one.connect_volume(data)
    if request["verb"] == "extend":
        return one.extend_volume(data)
    ignore_errors = request.get("ignore_errors", False)
    return one.disconnect_volume(data, request.get("device"), force=True, ignore_errors=ignore_errors)


def _os_brick(lock_path: str) -> Any:
    settings = import_module("oslo_config.cfg").CONF
    import_module("oslo_concurrency.lockutils").set_defaults(lock_path)
    settings([], project="kilonova", default_config_files=[], default_config_dirs=[])
    import_module("os_brick").setup(settings)
    privileged = import_module("os_brick.privileged")
    # In client mode the functions would run in a daemon.
    privileged.default.set_client_mode(False)
    privileged.brick_privsep_hide_output.set_client_mode(False)
    return import_module("os_brick.initiator.connector")


def error_text(error: Exception) -> str:
    """The message. Of a command that failed, its name and its own message: arguments may contain passwords."""
    command = getattr(error, "cmd", None)
    if not command:
        return " ".join(str(error).split()) or type(error).__name__
    reason = getattr(error, "stderr", None) or getattr(error, "description", None) or f"exit status {error!r}"
    return f"{str(command).split()[0]}: {' '.join(str(reason).split())}"


if __name__ == "__main__":
    main()
