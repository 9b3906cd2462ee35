"""The tour of the README, run literally with the stock client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.cloud_process import CloudProcess

ROOT = Path(__file__).parents[2]
VENV = Path(sys.executable).parents[1]
# This client spells `latest` as `2.latest`.
VERSIONS = (None, "2.1", "2.53", "2.96", "2.latest")
EXPECTED: list[dict[str, list[str]]] = [
    {
        "flavor list": ["m1.tiny", "m1.xlarge"],
        "image list": ["cirros-sim", "active"],
        "network list": ["private"],
        "server create": ["ACTIVE", "web"],
        "server list": ["web", "ACTIVE", "private=10.0.", "cirros-sim", "m1.tiny"],
        "server show web -c": ["SHUTOFF"],
        "server event list": ["create", "stop", "start", "reboot"],
    },
    {
        "aggregate add host": ["sim-001", "east"],
        "--wait one": ["ACTIVE"],
        "--wait two": ["2 not in zone east, 1 has a server of its anti-affinity group"],
        "resource provider list": ["sim-001", "sim-003"],
    },
    {
        "migrate --live-migration": ["Complete"],
        "server migration list": ["live-migration", "completed", "confirmed"],
        "host drain": ["sim-002"],
    },
    {
        "volume create --size 2": ["root", "creating"],
        "volume list": ["in-use", "/dev/vda", "/dev/vdb"],
        "server rebuild": ["Complete"],
    },
    {
        "sim fail": ["spawn on sim-001"],
        "fit --data": ["381 more servers fit", "MEMORY_MB"],
        "doctor": ["Everything agrees"],
    },
]


def tour_blocks() -> list[list[str]]:
    """The commands of the README's blocks that are marked for this test."""
    found = re.findall(r"<!-- tour:.*?-->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [[line for line in block.splitlines() if line.strip()] for block in found]


def test_readme_tour(tmp_path: Path, openstack: Path) -> None:
    """Runs everything at the client's default version, and the first block also at four other versions."""
    with ThreadPoolExecutor() as executor:
        for done in [executor.submit(_run_tour, tmp_path / str(version), openstack, version) for version in VERSIONS]:
            done.result()


def _run_tour(directory: Path, openstack: Path, version: str | None) -> None:
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "openstack").symlink_to(openstack)
    (programs / "kilonova").symlink_to(VENV / "bin" / "kilonova")
    blocks = tour_blocks() if version is None else tour_blocks()[:1]
    lines = [line for block in blocks for line in block]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    if version is not None:
        environ["OS_COMPUTE_API_VERSION"] = version
    # The client sends shelveOffload when it sees SHELVED, which fails if the cloud has offloaded the server.
    with CloudProcess(directory / "data", environ={"KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3600"}) as cloud:
        code, output, errors = run_lines(lines, directory, environ, lambda: _wait_until_idle(cloud))
        assert code == 0, output + errors
        shown = dict(zip(lines, re.split(r"^\$ .*\n", output, flags=re.MULTILINE)[1:], strict=True))
        for expected in EXPECTED[: len(blocks)]:
            check_shown(shown, expected)
        assert cloud.client("kilonova").get("compute", "/servers?all_tenants=1").json()["servers"] == []


def run_lines(
    lines: list[str], directory: Path, environ: dict[str, str], wait_until_idle: Callable[[], None]
) -> tuple[int, str, str]:
    """Run each line after the operations of the previous one have finished. Returns exit code, output and errors."""
    read_done, write_done = os.pipe()
    read_continue, write_continue = os.pipe()
    each = (
        f"printf '\\n$ %s\\n' {_quoted(line)}\n{line}\necho >&{write_done}; read -r <&{read_continue}" for line in lines
    )
    command = ["bash", "-c", "set -e\n" + "\n".join(each)]
    output, errors = directory / "output", directory / "errors"
    with output.open("w") as out, errors.open("w") as err:
        shell = subprocess.Popen(
            command,
            cwd=directory,
            env=environ,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            pass_fds=(write_done, read_continue),
        )
    for file in (write_done, read_continue):
        os.close(file)
    try:
        while os.read(read_done, 1):
            wait_until_idle()
            os.write(write_continue, b"\n")
    finally:
        for file in (read_done, write_continue):
            os.close(file)
        shell.wait()
    return shell.returncode, output.read_text(), errors.read_text()


def _wait_until_idle(cloud: CloudProcess) -> None:
    """Wait until no operation is running."""
    client, until = cloud.client(), time.monotonic() + 300
    pages = cloud.endpoints["compute"].removesuffix("/compute/v2.1")
    while b"\nkilonova_operations{" in client.request_url("GET", f"{pages}/metrics").body:
        assert time.monotonic() < until
        time.sleep(0.02)


def check_shown(shown: dict[str, str], expected: dict[str, list[str]]) -> None:
    """Check the expected texts in the output of each command."""
    for command, texts in expected.items():
        output = next(printed for line, printed in shown.items() if command in line)
        for text in texts:
            assert text in output, f"{command}: {output}"


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"
