"""An attachment is completed once the guest has the volume, which is in use only then."""

from kilonova.http.versions import Microversion, action
from kilonova.volume.attachments.api import ACTION

version = Microversion("3.44", __doc__, [action("os-complete", at=ACTION).begins()])
