"""The delays of a soak run (`make soak`), for tests that build a cloud themselves."""

from __future__ import annotations

import os

from kilonova.config import load
from kilonova.injected_delays import Delays

DELAYS = Delays(load(environ={key: value for key, value in os.environ.items() if "_DELAYS__" in key}).delays)
