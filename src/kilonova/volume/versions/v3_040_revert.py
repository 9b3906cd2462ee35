"""A volume can be reverted to its newest snapshot."""

from kilonova.http.versions import Microversion, action
from kilonova.volume.api import VOLUME_ACTION

version = Microversion("3.40", __doc__, [action("revert", at=VOLUME_ACTION).begins()])
