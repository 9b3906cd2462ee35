"""The stock client as one long session, a command at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.support.process import Cloud

# The first command waits for the client to start, which takes half a minute where many others start something too.
PATIENCE = 300.0


class Session:
    """An `openstack` that reads its commands as they come, because its start takes longer than all of them."""

    def __init__(self, openstack: Path, cloud: Cloud, directory: Path, **settings: str) -> None:
        """`settings` are what the client reads from its environment, such as `OS_COMPUTE_API_VERSION`."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
        environ |= {
            "OS_CLOUD": "kilonova",
            "OS_CLIENT_CONFIG_FILE": str(cloud.data / "clouds.yaml"),
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        self.output, self.complaints = directory / "output", directory / "complaints"
        with self.output.open("wb") as output, self.complaints.open("wb") as complaints:
            self.process = subprocess.Popen(
                [openstack], stdin=subprocess.PIPE, stdout=output, stderr=complaints, env=environ, text=True
            )
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # which ends the client also where the process only stands for it
        self.process.kill()
        self.process.wait()

    def do(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> Any:
        """What the command shows."""
        self.do(f"{command} -f json")
        until = time.monotonic() + PATIENCE
        while True:
            text = self.output.read_text()[self._read :]
            shown = re.search(r"[\[{]", text)  # before that may stand how far another command came
            try:
                found, end = json.JSONDecoder().raw_decode(text, shown.start() if shown else 0)
            except json.JSONDecodeError:
                assert time.monotonic() < until, f"{command}: {text} {self.complaints.read_text()}"
                assert self.process.poll() is None, self.complaints.read_text()
                time.sleep(0.02)
            else:
                self._read += end
                return found

    def end(self) -> str:
        """What it complained of."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        return self.complaints.read_text()
