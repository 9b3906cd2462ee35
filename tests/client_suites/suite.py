"""A suite of functional tests that another project publishes, and its run against a new cloud."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.client_suites import devstack_clouds, suites
from tests.support.cloud_process import CloudProcess
from tests.support.forked_clients import forked_clients

ROOT = Path(__file__).parents[2]
# The outcomes of each suite and the output of its run are kept here.
RESULTS_DIRECTORY = ROOT / ".client-suites"
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
TEST_TIMEOUT_SECONDS = 180


class Outcome(NamedTuple):
    """`status` is passed, failed or skipped; `reason` is the first line of the error or the reason of the skip."""

    status: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """Subclasses say how the tests run. Each run has a cloud of its own, because suites count servers and quotas."""

    # As the command line and the directory in `lists/` name the suite.
    name: str
    # Whether `make clients` without names runs the suite.
    is_default: bool = field(default=True, kw_only=True)
    # Options of `kilonova up`.
    options: tuple[str, ...] = field(default=("--hosts", "4"), kw_only=True)
    # Settings of the cloud.
    settings: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # Regular expression of the tests that CI runs, "" if it runs none.
    in_ci: str = field(default="", kw_only=True)

    def run(self, only: str = "") -> dict[str, Outcome]:
        """Run the tests whose names match the regular expression against a new cloud; returns outcomes by name."""
        with (
            tempfile.TemporaryDirectory() as directory,
            CloudProcess(Path(directory) / "data", *self.options, environ=self.settings) as cloud,
        ):
            workspace = Path(directory) / "workspace"
            workspace.mkdir()
            return self.run_tests(cloud, workspace, only)

    def run_tests(self, cloud: CloudProcess, workspace: Path, only: str) -> dict[str, Outcome]:
        raise NotImplementedError


@dataclass(frozen=True)
class PytestSuite(Suite):
    """Tests inside an installed package. A test's name is its pytest id, relative to the package's parent."""

    # Files and directories, relative to site-packages.
    paths: tuple[str, ...]
    # Directories of modules that the tests import and that are not installed.
    python_path: tuple[Path, ...] = field(default=(), kw_only=True)
    # Creates what the suite expects of a cloud besides the clouds of devstack's clouds.yaml.
    prepare: Callable[[CloudProcess], None] = field(default=lambda _: None, kw_only=True)
    # Regular expression of tests that sleep until time has passed. The sleeps of others are shortened.
    full_sleeps: str = field(default="$^", kw_only=True)
    # Whether the tests run `openstack` and `nova`.
    has_commands: bool = field(default=True, kw_only=True)
    # Empty files in the tests' working directory.
    files: tuple[str, ...] = field(default=(), kw_only=True)
    # Environment of the tests.
    environ: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def run_tests(self, cloud: CloudProcess, workspace: Path, only: str) -> dict[str, Outcome]:
        clouds_file = workspace / "clouds.yaml"
        devstack_clouds.write(cloud, clouds_file)
        self.prepare(cloud)
        programs = workspace / "bin"
        programs.mkdir()
        outcomes_file = workspace / "outcomes.jsonl"
        for file in (outcomes_file, *(workspace / name for name in self.files)):
            file.touch()
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OS_", "PYTEST_"))},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(map(str, (ROOT, *self.python_path))),
            "OS_CLIENT_CONFIG_FILE": str(clouds_file),
            # novaclient's tests start `nova` from this directory.
            "OS_NOVACLIENT_EXEC_DIR": str(programs),
            "TOX_ENV_DIR": sys.prefix,
            **self.environ,
        }
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(SITE_PACKAGES)]
        command += ["-p", "tests.client_suites.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
        command += ["--continue-on-collection-errors", f"--timeout={TEST_TIMEOUT_SECONDS}", "--only-tests", only]
        command += ["--full-sleeps", self.full_sleeps]
        command += ["--outcomes", str(outcomes_file), *(str(SITE_PACKAGES / path) for path in self.paths)]
        RESULTS_DIRECTORY.mkdir(exist_ok=True)
        commands = forked_clients(programs, workspace) if self.has_commands else nullcontext()
        with commands, (RESULTS_DIRECTORY / f"{self.name}.output").open("w") as output:
            subprocess.run(
                command, cwd=workspace, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
        return read_outcomes(outcomes_file)


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Outcomes that the pytest plugin wrote. A test that passed and whose cleanup failed has failed."""
    found: dict[str, Outcome] = {}
    for line in path.read_text().splitlines():
        test, *fields = json.loads(line)
        outcome = Outcome(*fields)
        if test not in found or outcome.status == "failed":
            found[test] = outcome
    return found


def all_suites() -> dict[str, Suite]:
    modules = (
        importlib.import_module(f"{suites.__name__}.{each.name}") for each in pkgutil.iter_modules(suites.__path__)
    )
    found: list[Suite] = [module.SUITE for module in modules]
    return {suite.name: suite for suite in found}
