"""Runs commands of the stock client one after the other in one process: its start would take most of the time.

Reads a list of argument lists as JSON, one for each line, and answers each with exit code, output and errors.
"""

import contextlib
import io
import json
import sys

from openstackclient import shell


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


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
