"""Runs commands of the stock client in one process, because its start-up takes most of the time.

Each input line is JSON: the name of a cloud and the arguments of a command. Each output line has exit code, output and
errors.
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


def drop_cached_clients() -> None:
    """Drop the shell's cached clients, which belong to the previous cloud and version."""
    for kept in vars(ClientManager).values():
        if isinstance(kept, ClientCache):
            kept._handle = None


last = None
for line in sys.stdin:
    cloud, *arguments = json.loads(line)
    if last != (last := (cloud, arguments[:2])):
        os.environ["OS_CLOUD"] = cloud
        drop_cached_clients()
    print(json.dumps(run(arguments)), flush=True)
