"""A virtual environment of its own for each service, in `.client-suites/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.client_suites.suite import RESULTS_DIRECTORY


def create_environment(name: str, packages: tuple[str, ...]) -> Path:
    """Install the packages, unless an earlier run did; returns the environment's directory."""
    directory = RESULTS_DIRECTORY / f"{name}-venv"
    complete = directory / "packages.txt"
    wanted = "".join(f"{package}\n" for package in packages)
    if not complete.exists() or complete.read_text() != wanted:
        print(f"installing {', '.join(packages)} (once; some minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        options = ["--quiet", "--quiet", "--disable-pip-version-check"]
        subprocess.run([directory / "bin" / "pip", "install", *options, *packages], check=True)
        complete.write_text(wanted)
    return directory
