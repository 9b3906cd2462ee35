"""Functional tests of osc-placement. They import fixtures of placement, for which `modules/` has a substitute."""

from pathlib import Path

from tests.client_suites.suite import PytestSuite

MODULES = Path(__file__).parents[1] / "modules"

SUITE = PytestSuite(
    "osc-placement",
    ("osc_placement/tests/functional",),
    # The tests expect an empty placement.
    options=("--hosts", "0"),
    python_path=(MODULES,),
    in_ci=r"test_(allocation|inventory|resource_provider)\.py",
)
