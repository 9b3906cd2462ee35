"""The runner of clients' functional suites: its lists, and its verdicts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client_suites import lists
from tests.client_suites.lists import Lists, judge, parse_cannot_pass
from tests.client_suites.run import recheck
from tests.client_suites.services.scenario import Scenario
from tests.client_suites.suite import Outcome, Suite, all_suites, read_outcomes
from tests.support.recheck import Flaky

ROOT = Path(__file__).parents[2]
PASSED, FAILED, SKIPPED = Outcome("passed"), Outcome("failed", "boom"), Outcome("skipped", "no Swift")
SERVICES = ("heat", "manila", "watcher")
LISTS = Lists(must_pass={"a::one", "a::two"}, cannot_pass={"b::*": "no object storage"})

EXAMPLE = """
import time
import unittest

class TestExample(unittest.TestCase):
    def test_passes(self):
        time.sleep(30)

    def test_fails(self):
        raise ValueError("boom")

    @unittest.skip("no Swift")
    def test_is_skipped(self):
        pass

class TestCleanup(unittest.TestCase):
    def tearDown(self):
        raise ValueError("not removed")

    def test_fails_in_teardown(self):
        pass
"""


def test_tests_that_pass_as_listed_are_neither_broken_nor_unlisted() -> None:
    verdict = judge(LISTS, {"a::one": PASSED, "a::two": PASSED, "b::three": SKIPPED, "b::four": FAILED})
    assert verdict.passed == ["a::one", "a::two"]
    assert verdict.known == ["b::four", "b::three"]
    assert (verdict.broken, verdict.unlisted, verdict.outdated) == ({}, {}, [])


@pytest.mark.parametrize("outcome", [FAILED, SKIPPED])
def test_test_of_must_pass_that_does_not_pass_is_broken(outcome: Outcome) -> None:
    assert judge(LISTS, {"a::one": PASSED, "a::two": outcome}).broken == {"a::two": outcome}


def test_test_of_must_pass_that_does_not_run_is_broken() -> None:
    assert judge(LISTS, {"a::one": PASSED}).broken == {"a::two": Outcome("not run")}


def test_test_of_must_pass_that_is_not_selected_is_not_broken() -> None:
    assert not judge(LISTS, {"a::one": PASSED}, only="one").broken


@pytest.mark.parametrize("outcome", [PASSED, FAILED, SKIPPED])
def test_test_in_no_list_is_unlisted(outcome: Outcome) -> None:
    assert judge(Lists(), {"c::new": outcome}).unlisted == {"c::new": outcome}


def test_pattern_with_a_test_that_passes_is_outdated() -> None:
    assert judge(LISTS, {"b::three": PASSED, "b::four": SKIPPED}).outdated == ["b::*"]


def test_pattern_without_tests_is_outdated() -> None:
    assert judge(LISTS, {}).outdated == ["b::*"]


def test_reason_applies_to_the_tests_below_it() -> None:
    text = "# No object storage,\n# which is outside.\na::*\nb::one[x]\n\n# Needs QoS.\nc::two\n"
    assert parse_cannot_pass(text) == {
        "a::*": "No object storage, which is outside.",
        "b::one[x]": "No object storage, which is outside.",
        "c::two": "Needs QoS.",
    }


def test_test_without_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="a::one: expected a line with # and the reason above it"):
        parse_cannot_pass("a::one\n# late\n")


@pytest.mark.parametrize("name", all_suites())
def test_lists_of_a_suite_can_be_read_and_do_not_overlap(name: str) -> None:
    read = lists.read(name)
    assert read.must_pass
    assert not {test: read.find_pattern(test) for test in read.must_pass if read.find_pattern(test)}


def test_every_directory_of_lists_belongs_to_a_suite() -> None:
    assert {path.name for path in lists.LISTS_DIRECTORY.iterdir()} == set(all_suites())


class ScriptedSuite(Suite):
    """Each run has the next of these outcomes of the only test."""

    def __init__(self, *statuses: str) -> None:
        super().__init__("scripted")
        self.statuses = iter(statuses)

    def run(self, only: str = "") -> dict[str, Outcome]:
        assert only == "^a::one\\[x\\]$"
        return {"a::one[x]": Outcome(next(self.statuses))}


def test_test_that_passes_three_times_alone_is_flaky() -> None:
    suite = ScriptedSuite("passed", "passed", "passed")
    assert recheck(suite, {"a::one[x]": FAILED}) == [Flaky("a::one[x]", "scripted: failed: boom")]


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_test_that_does_not_pass_alone_is_not_flaky(status: str) -> None:
    assert recheck(ScriptedSuite("passed", status), {"a::one[x]": FAILED}) == []


def test_plugin_writes_outcomes_and_shortens_sleeps(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE)
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
    command += ["-p", "tests.client_suites.pytest_plugin", "-p", "no:cacheprovider", "--timeout=20"]
    command += ["--continue-on-collection-errors", "--outcomes", str(tmp_path / "outcomes")]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    found = read_outcomes(tmp_path / "outcomes")
    assert {test.rpartition("::")[2]: (each.status, each.reason) for test, each in found.items()} == {
        "test_passes": ("passed", ""),
        "test_fails": ("failed", "ValueError: boom"),
        "test_is_skipped": ("skipped", "no Swift"),
        "test_fails_in_teardown": ("failed", "ValueError: not removed"),
        "test_broken.py": ("failed", "ModuleNotFoundError: No module named 'no_such_module'"),
    }


class ExampleScenario(Scenario):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def test_first(self) -> None:
        self.steps.append("first")

    def test_second(self) -> None:
        raise ValueError("boom")

    def test_third(self) -> None:
        self.steps.append("third")


def test_scenario_ends_with_the_first_failure(tmp_path: Path) -> None:
    scenario = ExampleScenario()
    outcomes = scenario.run(tmp_path / "log")
    assert [(name, each.status, each.reason) for name, each in outcomes.items()] == [
        ("test_first", "passed", ""),
        ("test_second", "failed", "boom"),
    ]
    assert scenario.steps == ["first"]
    assert "ValueError: boom" in (tmp_path / "log").read_text()


def test_scenario_runs_what_the_selected_test_builds_on(tmp_path: Path) -> None:
    outcomes = ExampleScenario().run(tmp_path / "log", "third")
    assert {name: each.status for name, each in outcomes.items()} == {"test_second": "failed"}
    assert {name: each.status for name, each in ExampleScenario().run(tmp_path / "log", "first").items()} == {
        "test_first": "passed"
    }


def test_suites_of_services_run_only_by_name() -> None:
    found = all_suites()
    assert [(found[name].is_default, found[name].in_ci) for name in SERVICES] == [(False, "")] * len(SERVICES)
