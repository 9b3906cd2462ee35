"""Volumes in use can be extended."""

from kilonova.http.versions import Microversion
from kilonova.volume.volumes.actions import EXTENDS_ATTACHED

version = Microversion("3.42", __doc__, [EXTENDS_ATTACHED])
