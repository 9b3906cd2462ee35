"""Lists can be filtered by `created_at` and `updated_at`, with operators: `gt:2026-01-02T03:04:05`."""

from kilonova.http.versions import Microversion
from kilonova.volume.filters import TIMES

version = Microversion("3.60", __doc__, [TIMES])
