"""Uploaded images have a visibility and protection, which the response shows."""

from kilonova.http.versions import Microversion, action
from kilonova.volume.api import VOLUME_ACTION
from kilonova.volume.volumes.upload import VISIBILITY

upload = action("os-volume_upload_image", at=VOLUME_ACTION)
version = Microversion("3.1", __doc__, [upload.gains("visibility"), upload.gains("protected"), VISIBILITY])
