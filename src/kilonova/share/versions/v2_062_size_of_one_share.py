"""Quota sets have a limit for the size of one share."""

from kilonova.http.versions import Microversion, request
from kilonova.share.quotas.api import SET

version = Microversion("2.62", __doc__, [request(f"PUT {SET}").gains("quota_set.per_share_gigabytes")])
