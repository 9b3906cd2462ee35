"""Resource locks forbid the deletion of an access rule, or hide its `access_to`."""

from kilonova.http.versions import Microversion, action
from kilonova.share.api import SHARE_ACTION

_ALLOW = action("allow_access", SHARE_ACTION)

version = Microversion(
    "2.82",
    __doc__,
    [
        *(_ALLOW.gains(key) for key in ("lock_visibility", "lock_deletion", "lock_reason")),
        action("deny_access", SHARE_ACTION).gains("unrestrict"),
    ],
)
