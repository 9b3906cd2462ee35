"""The other commands of `kilonova`, and the help."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import yaml

import kilonova as package
from kilonova.cli import COMMANDS
from tests.support import cloud_process

# Each command runs in a separate interpreter, so that missing imports show here.
kilonova = partial(cloud_process.kilonova, fresh=True)


def test_help_lists_every_command() -> None:
    shown = kilonova("--help")
    assert shown.returncode == 0
    for name, (_, words) in COMMANDS.items():
        assert f"  {name}" in shown.stdout
        assert " ".join(words.split()) in " ".join(shown.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str) -> None:
    shown = kilonova(name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"Usage: kilonova {name}")


def test_unknown_command_is_refused() -> None:
    refused = kilonova("hypervisor")
    assert refused.returncode == 2
    assert "No such command 'hypervisor'" in refused.stderr


def test_version() -> None:
    assert kilonova("version").stdout.strip() == package.__version__
    module = subprocess.run([sys.executable, "-m", "kilonova", "version"], capture_output=True, text=True, check=True)
    assert module.stdout.strip() == package.__version__


def test_policy_sample_is_a_valid_policy_file() -> None:
    lines = kilonova("policy", "sample").stdout.splitlines()
    rules = yaml.safe_load("\n".join(line[1:] for line in lines if line.startswith('#"')))
    assert rules["os_compute_api:servers:create"]
    assert rules["identity:create_project"]
    assert yaml.safe_load("\n".join(lines)) is None, "the printed sample changes no rule"


@pytest.mark.parametrize("name", ["api", "worker"])
def test_api_and_worker_need_postgresql(name: str, tmp_path: object) -> None:
    refused = kilonova(name, "--data", f"{tmp_path}/data")
    assert refused.returncode == 1
    assert "--database postgresql://" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
