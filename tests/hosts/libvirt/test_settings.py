"""Settings of real guests that have only so many values."""

from __future__ import annotations

import pytest

from kilonova.config import ConfigError, load

FORCE = "KILONOVA_LIBVIRT__FORCE_COMPLETE"


def test_how_a_migration_is_forced() -> None:
    assert load(environ={FORCE: "postcopy"}).libvirt.force_complete == "postcopy"
    with pytest.raises(ConfigError, match="force_complete"):
        load(environ={FORCE: "post-copy"})
