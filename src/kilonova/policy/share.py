"""Share: default rules under the names of the public Shared File System API."""

from __future__ import annotations

from kilonova.policy.base import ADMIN, ANY, MEMBER_OR_ADMIN, READER_OR_ADMIN, Rule, rules

RULES: tuple[Rule, ...] = (
    *rules(
        "share:",
        ("create", MEMBER_OR_ADMIN, "Create a share."),
        ("get", READER_OR_ADMIN, "Show a share."),
        ("get_all", READER_OR_ADMIN, "List shares."),
        ("list_by_host", ADMIN, "See the back end of a share."),
        ("update", MEMBER_OR_ADMIN, "Change the name and the description of a share."),
        ("delete", MEMBER_OR_ADMIN, "Delete a share."),
        ("force_delete", ADMIN, "Delete a share whatever its status."),
        ("reset_status", ADMIN, "Set the status of a share."),
        ("reset_task_state", ADMIN, "Clear the task state of a share."),
        ("extend", MEMBER_OR_ADMIN, "Extend a share."),
        ("force_extend", ADMIN, "Extend a share without the scheduler."),
        ("shrink", MEMBER_OR_ADMIN, "Shrink a share."),
        ("get_share_metadata", READER_OR_ADMIN, "Show the metadata of a share."),
        ("update_share_metadata", MEMBER_OR_ADMIN, "Set metadata of a share."),
        ("delete_share_metadata", MEMBER_OR_ADMIN, "Delete metadata of a share."),
        ("allow_access", MEMBER_OR_ADMIN, "Allow access to a share."),
        ("deny_access", MEMBER_OR_ADMIN, "Deny access to a share."),
    ),
    *rules(
        "",
        ("share_export_location:index", READER_OR_ADMIN, "List the export locations of a share."),
        ("share_export_location:show", READER_OR_ADMIN, "Show an export location of a share."),
        ("share_access_rule:index", READER_OR_ADMIN, "List the access rules of a share."),
        ("share_access_rule:get", READER_OR_ADMIN, "Show an access rule."),
        ("share_access_metadata:update", MEMBER_OR_ADMIN, "Set metadata of an access rule."),
        ("share_access_metadata:delete", MEMBER_OR_ADMIN, "Delete metadata of an access rule."),
        ("resource_lock:get", READER_OR_ADMIN, "Show a resource lock."),
        ("resource_lock:get_all", READER_OR_ADMIN, "List resource locks."),
        ("resource_lock:create", MEMBER_OR_ADMIN, "Lock a share or an access rule."),
        ("resource_lock:update", MEMBER_OR_ADMIN, "Change a resource lock."),
        ("resource_lock:delete", MEMBER_OR_ADMIN, "Delete a resource lock."),
        ("share_type:index", ANY, "List share types."),
        ("share_type:show", ANY, "Show a share type."),
        ("share_type:default", ANY, "Show the default share type."),
        ("share_types_extra_spec:index", READER_OR_ADMIN, "Show the extra specs of a share type."),
        ("quota_set:show", READER_OR_ADMIN, "Show the share quota of a project."),
        ("quota_set:update", ADMIN, "Set the share quota of a project."),
        ("quota_set:delete", ADMIN, "Reset the share quota of a project."),
        ("service:index", ADMIN, "List the services of the share service."),
        ("availability_zone:index", ANY, "List the availability zones of the share service."),
    ),
)
