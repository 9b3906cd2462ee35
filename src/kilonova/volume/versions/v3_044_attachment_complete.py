"""An attachment is completed when the guest has the volume. Only then the volume is in use."""

from kilonova.http.versions import Microversion, action
from kilonova.volume.attachments.api import ACTION

version = Microversion("3.44", __doc__, [action("os-complete", at=ACTION).begins()])
