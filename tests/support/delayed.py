"""The delays of a soak run, for tests that assemble the parts of a cloud themselves. `make soak` sets them."""

from __future__ import annotations

import os

from kilonova.config import load
from kilonova.delays import Delays

DELAYS = Delays(load(environ={key: value for key, value in os.environ.items() if "_DELAYS__" in key}).delays)
