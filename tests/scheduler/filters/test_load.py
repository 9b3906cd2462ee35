"""Loading of built-in filters. For installed packages see tests/scheduler/test_plugins.py."""

from __future__ import annotations

import pkgutil

import pytest

from kilonova.scheduler import filters
from kilonova.scheduler.config import FILTERS
from kilonova.scheduler.filters import load

ALL = [module.name for module in pkgutil.iter_modules(filters.__path__)]


def test_load_keeps_order_and_rejects_unknown_filters() -> None:
    assert [check.name for check in load(["capacity", "kilonova.scheduler.filters.zone"])] == ["capacity", "zone"]
    with pytest.raises(ValueError, match="no scheduler filter 'zones'"):
        load(["zones"])
    with pytest.raises(ValueError, match=r"'kilonova\.ids' is not a scheduler filter"):
        load(["kilonova.ids"])


def test_default_filters_end_with_capacity() -> None:
    assert set(FILTERS) <= set(ALL)
    assert FILTERS[-1] == "capacity"


@pytest.mark.parametrize("name", ALL)
def test_every_filter_has_a_one_line_description(name: str) -> None:
    (check,) = load([name])
    text = (__import__(f"kilonova.scheduler.filters.{name}", fromlist=["x"]).__doc__ or "").partition("\n")[0]
    assert text.endswith((".", "…", "`."))
    assert check.name == name
