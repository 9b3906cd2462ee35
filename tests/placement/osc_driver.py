"""Runs commands of the stock client one after the other in one process: its start would take most of the time.

Reads lines of JSON, each with the name of a cloud and the arguments of a command, and answers each with exit code,
output and errors.
"""

import contextlib
import io
import json
import os
import sys

from openstackclient import shell
from osc_lib.clientmanager import ClientCache, ClientManager


def run(arguments: list[str]) -> list[object]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        client = shell.OpenStackShell()
        client.stdout, client.stderr = out, err
        try:
            code = client.run(arguments)
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue()]


def forget() -> None:
    """The shell keeps its clients for as long as the process lasts, whatever cloud or version is asked for next."""
    for kept in vars(ClientManager).values():
        if isinstance(kept, ClientCache):
            kept._handle = None


last = None
for line in sys.stdin:
    cloud, *arguments = json.loads(line)
    if last != (last := (cloud, arguments[:2])):
        os.environ["OS_CLOUD"] = cloud
        forget()
    print(json.dumps(run(arguments)), flush=True)
