"""An interactive session of the stock client `openstack`, which runs one command at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.support.cloud_process import CloudProcess

# The first command waits for the start of the client, which takes half a minute on a busy machine.
TIMEOUT_SECONDS = 300.0


class OpenstackSession:
    """One `openstack` process for many commands, because its start takes longer than all of them."""

    def __init__(self, openstack: Path, cloud: CloudProcess, directory: Path, **settings: str) -> None:
        """`settings` are environment variables of the client, such as `OS_COMPUTE_API_VERSION`."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
        environ |= {
            "OS_CLOUD": "kilonova",
            "OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml"),
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        self.output, self.errors = directory / "output", directory / "errors"
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [openstack], stdin=subprocess.PIPE, stdout=output, stderr=errors, env=environ, text=True
            )
        self._parsed_length = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # ends the client also if it is forked
        self.process.kill()
        self.process.wait()

    def send(self, command: str) -> None:
        """Send a command without waiting for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def run_json(self, command: str) -> Any:
        """Run a command and return its output, parsed from JSON."""
        self.send(f"{command} -f json")
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            text = self.output.read_text()[self._parsed_length :]
            start = re.search(r"[\[{]", text)  # progress output of another command may precede the JSON
            try:
                found, end = json.JSONDecoder().raw_decode(text, start.start() if start else 0)
            except json.JSONDecodeError:
                assert time.monotonic() < until, f"{command}: {text} {self.errors.read_text()}"
                assert self.process.poll() is None, self.errors.read_text()
                time.sleep(0.02)
            else:
                self._parsed_length += end
                return found

    def close(self) -> str:
        """Wait for all commands, end the session, and return its error output."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(TIMEOUT_SECONDS)
        return self.errors.read_text()
