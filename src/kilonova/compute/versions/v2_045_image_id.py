"""The responses to `createImage` and `createBackup` have the new image's id, in place of a `Location`."""

from kilonova.compute.servers.actions.create_image import SAYS_ID
from kilonova.http.versions import Microversion

version = Microversion("2.45", __doc__, [SAYS_ID])
