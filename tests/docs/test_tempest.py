"""docs/api/tempest.md: the tests of tempest.api.compute that cannot pass. run.py compares it with tempest."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api/tempest.md").read_text()
OF_COMPUTE = re.compile(r"tempest\.(serial_tests\.)?api\.compute\.")


def test_page_has_each_other_test_once_with_a_reason() -> None:
    listed = re.findall(r"^- `(tempest\.[\w.]+)`$", PAGE, flags=re.M)
    must_pass = (ROOT / "tests/tempest/must-pass.txt").read_text().split()
    assert len(listed) == len(set(listed))
    assert all(OF_COMPUTE.match(name) for name in listed)
    assert not set(listed) & set(must_pass)
    reasons = [section.partition("\n\n- `tempest.") for section in re.split(r"^### .+\n\n", PAGE, flags=re.M)[1:]]
    assert reasons
    assert all(reason and tests for reason, _, tests in reasons)
    required = sum(bool(OF_COMPUTE.match(name)) for name in must_pass)
    counts = f"{required + len(listed)} tests. {required} of them must pass in each change; {len(listed)} cannot pass"
    assert counts in " ".join(PAGE.split())
