"""Administrators can show the limits of another project, by `project_id`."""

from kilonova.http.versions import Microversion
from kilonova.volume.quotas.api import OTHER_PROJECT

version = Microversion("3.39", __doc__, [OTHER_PROJECT])
