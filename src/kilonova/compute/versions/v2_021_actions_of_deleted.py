"""The actions of a deleted server can be seen."""

from kilonova.compute.instance_actions import OF_DELETED
from kilonova.http.versions import Microversion

version = Microversion("2.21", __doc__, [OF_DELETED])
