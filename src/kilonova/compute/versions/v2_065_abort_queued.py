"""A live migration can also be aborted while it is queued or being prepared."""

from kilonova.compute.migrations.actions import ABORT_QUEUED
from kilonova.http.versions import Microversion

version = Microversion("2.65", __doc__, [ABORT_QUEUED])
