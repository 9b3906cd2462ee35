"""Compute reports that a server has noticed the extension of its volume. No volume waits for that here."""

from kilonova.http.versions import Microversion, action
from kilonova.volume.api import VOLUME_ACTION

version = Microversion("3.71", __doc__, [action("os-extend_volume_completion", at=VOLUME_ACTION).begins()])
