"""SIGHUP: a process reads its policy again, unless its terminal was closed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from pathlib import Path

from tests.support.cloud_process import KILONOVA, CloudProcess


def test_policy_is_reloaded_or_kept(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("")
    with CloudProcess(tmp_path / "data", "--hosts", "0", "--policy", str(policy)) as cloud:
        client = cloud.client()

        def list_status() -> int:
            return client.get("compute", "/servers").status

        assert list_status() == 200
        policy.write_text('"os_compute_api:servers:index": "!"\n')
        cloud.reload("policy reloaded")
        assert list_status() == 403
        policy.write_text('"os_compute_api:servers:index": "role:reader or"\n')
        assert "rule 'os_compute_api:servers:index': the check" in cloud.reload("policy not reloaded")
        policy.write_text('"os_compute_api:servers:index": "@"\n"broken: "@"\n')
        assert "line 2" in cloud.reload("policy not reloaded")
        assert list_status() == 403
        policy.write_text("")
        cloud.reload("policy reloaded")
        assert list_status() == 200


def take_terminal() -> None:
    """Make standard input the controlling terminal. The tests may run under nohup, which ignores SIGHUP."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_process_ends_with_its_terminal_only(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    log = tmp_path / "data/kilonova.log"
    process = subprocess.Popen(
        [KILONOVA, "up", "--data", str(tmp_path / "data"), "--port", "0", "--hosts", "0", "--policy", os.devnull],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    try:
        while b"clouds.yaml" not in os.read(master, 65536):
            pass
        process.send_signal(signal.SIGHUP)
        while "policy reloaded" not in log.read_text():
            time.sleep(0.02)
            assert process.poll() is None
        os.close(master)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
