"""The generated pages are current and correct."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kilonova import compute
from kilonova.docs.__main__ import PAGES, main
from kilonova.docs.coverage import proving_tests
from kilonova.placement.build import build as placement
from kilonova.share import build as share
from kilonova.volume import build as volume

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_current() -> None:
    """In a process of its own, because other tests register operations."""
    checked = subprocess.run(
        [sys.executable, "-m", "kilonova.docs", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_check_lists_stale_pages_and_run_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "docs/api").mkdir(parents=True)
    (tmp_path / "docs/api/routes.json").write_text((ROOT / "docs/api/routes.json").read_text())

    def call(*options: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kilonova.docs", "--root", str(tmp_path), *options])
        return main(), capsys.readouterr().err

    code, error = call("--check")
    assert code == 1
    assert all(name in error for name in PAGES)
    assert call() == (0, "")
    assert call("--check") == (0, "")
    (tmp_path / "docs/policy.yaml").write_text("old")
    code, error = call("--check")
    assert code == 1
    assert "policy.yaml is out of date" in error


def test_handwritten_text_is_kept(tmp_path: Path) -> None:
    from kilonova.docs.configuration import MARK, page

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/configuration.md").write_text(f"# Mine\n\nWords.\n\n{MARK}\n\nold table\n")
    written = page(tmp_path)
    assert written.startswith(f"# Mine\n\nWords.\n\n{MARK}\n")
    assert "old table" not in written
    assert "`KILONOVA_SIM__HOSTS`" in written


def test_proves_names_existing_routes() -> None:
    api = compute.build()
    known = {*api.routes, *api.document_routes}
    for other in (placement(), volume(), share()):
        known |= {
            f"{route.method} {other.prefix}{route.path}" + (f"#{route.action}" if route.action else "")
            for route in other.routes.values()
        }
    assert sorted(set(proving_tests(ROOT / "tests")) - known) == []


def test_proving_tests_are_found_in_functions_and_classes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        '@proves("GET /a", "GET /b")\ndef test_one(): ...\n'
        'class TestTwo:\n    @proves("GET /b")\n    def test_two(self): ...\n'
        '@other("GET /c")\ndef test_three(): ...\n'
    )
    name = tmp_path.name
    assert proving_tests(tmp_path) == {
        "GET /a": [f"{name}/test_it.py::test_one"],
        "GET /b": [f"{name}/test_it.py::test_one", f"{name}/test_it.py::TestTwo::test_two"],
    }


@pytest.mark.skipif(not (ROOT.parent / "shared/compute-api/routes.md").exists(), reason="needs ../shared")
def test_routes_json_has_all_public_routes() -> None:
    text = (ROOT.parent / "shared/compute-api/routes.md").read_text()
    routes = json.loads((ROOT / "docs/api/routes.json").read_text())
    assert f"{len(routes)} method/path/action entries" in text
