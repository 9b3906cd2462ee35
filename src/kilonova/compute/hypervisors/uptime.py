"""How long a host has been up, in the words of uptime(1), which clients take apart again."""

from __future__ import annotations

from datetime import UTC, datetime

_DAY, _HOUR, _MINUTE = 86400, 3600, 60


def words(booted_at: float, now: float) -> str:
    """Nobody is logged in to a hypervisor, and hosts do not report their load."""
    clock = datetime.fromtimestamp(now, UTC).strftime("%H:%M:%S")
    return f" {clock} up {_span(max(int(now - booted_at), 0))},  0 users,  load average: 0.00, 0.00, 0.00"


def _span(seconds: int) -> str:
    days, rest = divmod(seconds, _DAY)
    hours, rest = divmod(rest, _HOUR)
    minutes = rest // _MINUTE
    short = f"{hours:2d}:{minutes:02d}" if hours else f"{minutes} min"
    if not days:
        return short
    return f"{days} day{'s' if days > 1 else ''}, {short}"
