"""Repeat tests under random delays, to find tests that depend on timing. `make soak ARGS="tests/faults --minutes 30"`

Each round runs the tests once, with another seed: every statement, host command and HTTP call between services is
delayed at random (`[delays]` in docs/configuration.md), in the tests and in the processes that they start. The summary
names each failed test with the seeds that it failed with; `--seed N --minutes 0` runs one round with seed N again.
Other options go to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import defaultdict

# Delayed tests mostly wait: on two processors eight workers keep both busy.
JOBS = "8"
# A delayed test takes many times as long as usual.
TIMEOUT_SECONDS = "3600"


def run_round(arguments: list[str], seed: int, milliseconds: float) -> tuple[int, list[str]]:
    """pytest's exit code, and the tests that failed."""
    environ = {
        **os.environ,
        "KILONOVA_DELAYS__MILLISECONDS": str(milliseconds),
        "KILONOVA_DELAYS__SEED": str(seed),
    }
    command = [sys.executable, "-m", "pytest", "-n", JOBS, "--dist", "worksteal", "--timeout", TIMEOUT_SECONDS]
    lines = []
    with subprocess.Popen([*command, *arguments], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    failed = [found[1] for line in lines if (found := re.match(r"(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", line.rstrip()))]
    return process.returncode, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="start rounds for this long (default: %(default)s)")
    parser.add_argument("--milliseconds", type=float, default=40, help="the longest delay (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first round (default: the time)")
    options, arguments = parser.parse_known_args()
    until = time.monotonic() + options.minutes * 60
    first = seed = options.seed if options.seed is not None else int(time.time())
    seeds: dict[str, list[int]] = defaultdict(list)
    broken = False
    while seed == first or time.monotonic() < until:
        print(f"round {seed - first + 1}: seed {seed}", flush=True)
        code, failed = run_round(arguments, seed, options.milliseconds)
        broken = broken or (code != 0 and not failed)
        for test in failed:
            seeds[test].append(seed)
        seed += 1
        if broken:
            break
    print(f"soak: {seed - first} rounds, {len(seeds)} tests failed")
    for test, failed_with in sorted(seeds.items(), key=lambda item: -len(item[1])):
        print(f"{test}: failed with seeds {', '.join(map(str, failed_with))}")
    return 1 if seeds or broken else 0


if __name__ == "__main__":
    sys.exit(main())
