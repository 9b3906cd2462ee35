"""The README's tour, run to the letter with the stock client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.process import Cloud

ROOT = Path(__file__).parents[2]
VENV = Path(sys.executable).parents[1]
# `2.latest` is how this client says latest.
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


def tour() -> list[list[str]]:
    """The commands of the blocks below the comments that speak of this test."""
    found = re.findall(r"<!-- tour:.*?-->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [[line for line in block.splitlines() if line.strip()] for block in found]


def test_the_tour_works_as_it_is_written(tmp_path: Path, openstack: Path) -> None:
    """All of it as the client chooses the version, the first block also at four that its users choose."""
    with ThreadPoolExecutor() as at_once:
        for done in [at_once.submit(_walk, tmp_path / str(version), openstack, version) for version in VERSIONS]:
            done.result()


def _walk(directory: Path, openstack: Path, version: str | None) -> None:
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "openstack").symlink_to(openstack)
    (programs / "kilonova").symlink_to(VENV / "bin" / "kilonova")
    blocks = tour() if version is None else tour()[:1]
    lines = [line for block in blocks for line in block]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    if version is not None:
        environ["OS_COMPUTE_API_VERSION"] = version
    # The client offloads what it sees SHELVED, too late if the cloud was about to do so.
    with Cloud(directory / "data", environ={"KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3600"}) as cloud:
        code, told, complaints = _type(lines, directory, environ, cloud)
        assert code == 0, told + complaints
        shown = dict(zip(lines, re.split(r"^\$ .*\n", told, flags=re.MULTILINE)[1:], strict=True))
        for expected in EXPECTED[: len(blocks)]:
            _check(shown, expected)
        assert cloud.client("kilonova").get("compute", "/servers?all_tenants=1").json()["servers"] == []


def _type(lines: list[str], directory: Path, environ: dict[str, str], cloud: Cloud) -> tuple[int, str, str]:
    """As a reader does: the next line when what the one before began is over. How it ended, and what was shown."""
    told, tell = os.pipe()
    wait, go_on = os.pipe()
    each = (f"printf '\\n$ %s\\n' {_quoted(line)}\n{line}\necho >&{tell}; read -r <&{wait}" for line in lines)
    command = ["bash", "-c", "set -e\n" + "\n".join(each)]
    output, errors = directory / "output", directory / "errors"
    with output.open("w") as out, errors.open("w") as err:
        typing = subprocess.Popen(
            command, cwd=directory, env=environ, stdout=out, stderr=err, stdin=subprocess.DEVNULL, pass_fds=(tell, wait)
        )
    for its in (tell, wait):
        os.close(its)
    try:
        while os.read(told, 1):
            _calm(cloud)
            os.write(go_on, b"\n")
    finally:
        for ours in (told, go_on):
            os.close(ours)
        typing.wait()
    return typing.returncode, output.read_text(), errors.read_text()


def _calm(cloud: Cloud) -> None:
    """Wait until nothing is under way."""
    client, until = cloud.client(), time.monotonic() + 300
    pages = cloud.endpoints["compute"].removesuffix("/compute/v2.1")
    while b"\nkilonova_operations{" in client.plain("GET", f"{pages}/metrics").body:
        assert time.monotonic() < until
        time.sleep(0.02)


def _check(shown: dict[str, str], expected: dict[str, list[str]]) -> None:
    """Each command's output says what the reader is to see."""
    for command, words in expected.items():
        output = next(text for line, text in shown.items() if command in line)
        for word in words:
            assert word in output, f"{command}: {output}"


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"
