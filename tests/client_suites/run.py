"""Runs functional tests that come inside the wheels of clients, each suite against a new `kilonova up`.

    make clients                             all suites
    make clients ARGS=sdk-compute,novaclient these suites
    make clients ARGS=heat,watcher,manila    services that others publish, beside the cloud; not run without their names
    make clients ARGS=--ci                   the part of each suite that CI runs
    make clients ARGS="novaclient --only RE" tests whose names match the expression
    make clients ARGS="novaclient --record"  adds tests that pass and are in no list to must-pass.txt
    make clients ARGS="--ci --recheck"       a failed test may pass three times alone instead

`suites/` has a module per suite, `lists/SUITE/` its lists (see lists.py). A run fails if a test of must-pass.txt does
not pass, or if a test that is in neither list fails or is skipped. It reports tests that pass against cannot-pass.txt.
`.client-suites/` keeps the outcomes and the output of each suite.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.client_suites import lists
from tests.client_suites.lists import Verdict
from tests.client_suites.suite import RESULTS_DIRECTORY, Outcome, Suite, all_suites
from tests.support.recheck import MAX_FLAKY_TESTS, RUNS, Flaky, read_flaky, record_flaky


def run(suite: Suite, only: str, *, record: bool) -> Verdict:
    """Run the suite, and print everything that contradicts its lists."""
    outcomes = suite.run(only)
    RESULTS_DIRECTORY.mkdir(exist_ok=True)
    lines = [f"{each.status} {each.seconds:.2f} {test} {each.reason}" for test, each in sorted(outcomes.items())]
    (RESULTS_DIRECTORY / f"{suite.name}.txt").write_text("".join(f"{line.rstrip()}\n" for line in lines))
    expected = lists.read(suite.name)
    if record:
        new = {test for test, each in outcomes.items() if each.status == "passed" and not expected.find_pattern(test)}
        print(f"{suite.name}: added {len(new - expected.must_pass)} tests to must-pass.txt")
        expected.must_pass |= new
        lists.write_must_pass(suite.name, expected.must_pass)
    verdict = lists.judge(expected, outcomes, only)
    for pattern in verdict.outdated:
        print(f"OUTDATED {suite.name}: cannot-pass.txt has {pattern}, which passes or does not exist")
    return verdict


def report(suite: str, word: str, tests: dict[str, Outcome]) -> None:
    for test, outcome in tests.items():
        print(f"{word} {suite}: {test}: {outcome.status}: {outcome.reason}")


def recheck(suite: Suite, failed: dict[str, Outcome]) -> list[Flaky]:
    """The failed tests that pass in all runs alone."""
    return [
        Flaky(test, f"{suite.name}: {outcome.status}: {outcome.reason}")
        for test, outcome in failed.items()
        if all(passes_alone(suite, test) for _ in range(RUNS))
    ]


def passes_alone(suite: Suite, test: str) -> bool:
    outcome = suite.run(f"^{re.escape(test)}$").get(test)
    return outcome is not None and outcome.status == "passed"


def main() -> int:
    suites = all_suites()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="?", metavar="SUITE,…", help=f"of {', '.join(suites)}")
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--only", metavar="RE", default="")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--recheck", action="store_true")
    options = parser.parse_args()
    names = options.suites.split(",") if options.suites else [each.name for each in suites.values() if each.is_default]
    if unknown := sorted(set(names) - set(suites)):
        parser.error(f"{', '.join(unknown)}: no such suite; expected some of {', '.join(suites)}")
    passed = failed = skipped = 0
    flaky: list[Flaky] = []
    for suite in (suites[name] for name in names if suites[name].in_ci or not options.ci):
        verdict = run(suite, suite.in_ci if options.ci else options.only, record=options.record)
        found = []
        if options.recheck and len(read_flaky()) + len(flaky) + len(verdict.broken) <= MAX_FLAKY_TESTS:
            found = recheck(suite, verdict.broken)
        for each in found:
            print(f"FLAKY {each}")
            del verdict.broken[each.test]
        flaky += found
        report(suite.name, "FAILED", verdict.broken)
        report(suite.name, "UNLISTED", verdict.unlisted)
        wrong = len(verdict.broken) + len(verdict.unlisted)
        print(
            f"{suite.name}: {len(verdict.passed)} passed, {wrong} wrong, {len(verdict.known)} cannot pass", flush=True
        )
        passed, failed, skipped = passed + len(verdict.passed), failed + wrong, skipped + len(verdict.known)
    record_flaky(flaky)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
