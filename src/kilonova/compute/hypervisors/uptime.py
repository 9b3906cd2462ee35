"""The uptime of a host in the format of uptime(1), which clients parse."""

from __future__ import annotations

from datetime import UTC, datetime

_DAY, _HOUR, _MINUTE = 86400, 3600, 60


def format_uptime(booted_at: float, now: float) -> str:
    """Users and load are always 0: hosts do not report them."""
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
