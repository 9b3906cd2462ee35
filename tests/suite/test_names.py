"""House rules for names: modules are nouns or verbs in the base form, OpenStack's words are used, paths exist."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from kilonova.operations.testing import OperationTests
from tests import conftest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/kilonova"
# The trade's own names for an activity or its result.
ALLOWED_GERUNDS = {"listing", "paging", "scheduling", "testing"}
ENDINGS = ("s", "es", "d", "ed", "er", "ing", "ion")
# A word that OpenStack has, by the word to use instead of it.
REPLACED_WORDS = {
    "dress": "enrich",
    "duties": "periodic",
    "duty": "periodic",
    "insist": "call",
    "landing": "place",
    "leftover": "cleanup",
    "leftovers": "cleanup",
    "patience": "timeout",
    "sight": "visibility",
    "silence": "unreachable",
    "silent": "unreachable",
    "whoever": "the noun",
}


def packages() -> list[Path]:
    return [SOURCE, *sorted(path.parent for path in SOURCE.glob("*/**/__init__.py"))]


def module_names(package: Path) -> list[str]:
    modules = {path.stem for path in package.glob("*.py")}
    return sorted(modules | {path.parent.name for path in package.glob("*/__init__.py")})


@pytest.mark.parametrize("package", packages(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_of_a_package_do_not_differ_by_an_ending_only(package: Path) -> None:
    names = module_names(package)
    alike = [(name, name + ending) for name in names for ending in ENDINGS if name + ending in names]
    alike += [(name, f"{name[:-1]}ing") for name in names if name[-1] == "e" and f"{name[:-1]}ing" in names]
    assert not alike


def test_module_name_is_no_gerund() -> None:
    names = {path.stem for path in SOURCE.rglob("*.py") if "versions" not in path.parts}
    assert {name for name in names if name.endswith("ing")} <= ALLOWED_GERUNDS


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def test_identifiers_use_the_words_of_openstack() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line} {name}": f"use {REPLACED_WORDS[word]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in identifiers(path)
        for word in name.lower().split("_")
        if word in REPLACED_WORDS
    }
    assert not found


def test_paths_and_tests_that_conftest_names_exist() -> None:
    paths = {*conftest.ON_BOTH_DATABASES, *conftest.NOT_QUICK, *conftest.LONG}
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]
    assert all(hasattr(OperationTests, name) for name in (conftest.GENERATED_ON_BOTH, *conftest.GENERATED_SLOW))
