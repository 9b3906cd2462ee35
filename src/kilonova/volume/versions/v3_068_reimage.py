"""The content of a volume can be replaced by an image."""

from kilonova.http.versions import Microversion, action
from kilonova.volume.api import VOLUME_ACTION

version = Microversion("3.68", __doc__, [action("os-reimage", at=VOLUME_ACTION).begins()])
