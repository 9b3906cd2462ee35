"""Ends child processes with the tests that started them."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """A `preexec_fn`: the process gets the signal when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
