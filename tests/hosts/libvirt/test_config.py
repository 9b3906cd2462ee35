"""Settings of the libvirt driver."""

from __future__ import annotations

import pytest

from kilonova.config import load
from kilonova.config_names import ConfigError

FORCE = "KILONOVA_LIBVIRT__FORCE_COMPLETE"


def test_force_complete_values() -> None:
    assert load(environ={FORCE: "postcopy"}).libvirt.force_complete == "postcopy"
    with pytest.raises(ConfigError, match="force_complete"):
        load(environ={FORCE: "post-copy"})
