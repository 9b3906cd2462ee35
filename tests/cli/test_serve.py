"""What `kilonova up` prints while the cloud runs."""

from __future__ import annotations

import os
import subprocess
import sys

PRINT = "from kilonova.cli.serve import print_host; print_host('box is there'); print('continued')"


def test_closed_terminal_does_not_stop_the_cloud() -> None:
    """A background task prints the line, and its failure would stop the process."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run([sys.executable, "-c", PRINT], stdout=subprocess.PIPE, stderr=writer, check=False)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stdout) == (0, b"continued\n")
