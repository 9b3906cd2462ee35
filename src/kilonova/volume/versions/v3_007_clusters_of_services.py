"""Services show their cluster, which is always null."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.7", __doc__, [view("volume service").gains("cluster")])
