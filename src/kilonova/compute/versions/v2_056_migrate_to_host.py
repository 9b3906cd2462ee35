"""A server is migrated to a `host`, if the scheduler agrees; it cannot be the one where the server is."""

from typing import Any

from kilonova.http.pieces import ANYTHING
from kilonova.http.versions import Microversion, action


def to_anywhere(body: Any) -> Any:
    """Nobody ever looked at what old clients send."""
    return {"migrate": None}


version = Microversion(
    "2.56", __doc__, [action("migrate").changes("", before=ANYTHING, required_before=True, upgrade=to_anywhere)]
)
