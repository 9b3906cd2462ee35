"""Services show the cluster that they are in: none."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.7", __doc__, [view("volume service").gains("cluster")])
