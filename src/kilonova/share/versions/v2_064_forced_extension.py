"""Administrators extend a share without the scheduler."""

from kilonova.http.versions import Microversion, action
from kilonova.share.api import SHARE_ACTION

version = Microversion("2.64", __doc__, [action("extend", SHARE_ACTION).gains("force")])
