"""The current time, and the time formats of the API."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> float:
    """Return epoch seconds, rounded to the API's microseconds: a client may send a time back that it was shown."""
    return round(time.time(), 6)


def iso(moment: float) -> str:
    """`2026-01-02T03:04:05Z`, as server views write times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def iso_micro(moment: float) -> str:
    """`2026-01-02T03:04:05.000000`, as services and actions write times."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").removesuffix("+00:00")


def parse(text: str) -> float:
    """Return the epoch seconds of an ISO 8601 time. Without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
