"""Volumes show the cluster of their back end to administrators. It is always null."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.61", __doc__, [view("volume", "new volume").gains("cluster_name")])
