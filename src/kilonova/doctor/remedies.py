"""Instructions for each kind of finding."""

from __future__ import annotations

# Operations leave everything they touch consistent, so deleting and booting again repairs most findings. "A bug" means
# that nothing else explains the finding: report it, together with `kilonova operations` of the server.
REMEDIES = {
    "operation stuck": "the reason says what it waits for; it continues by itself afterwards. A kind or step that "
    "this release does not know waits for a worker of the other release",
    "cleanup overdue": "see the reason; it continues by itself when the host responds. Otherwise remove the guest "
    "on the host yourself, or delete the compute service of a host that will not come back",
    "transient state without operation": "a bug: delete the server and boot it again",
    "offloaded server on a host": "a bug: delete the server",
    "resize undecided": "a bug, or a delete of an older release that failed: openstack server set --state active ID "
    "confirms the resize",
    "allocation without server": "a bug, or made by hand: openstack resource provider allocation delete ID",
    "allocation without move": "a bug, or made by hand: openstack resource provider allocation delete ID",
    "consumer without allocations": "a bug without effect; the next change of the consumer's allocations removes it",
    "allocation on the wrong host": "a bug, or changed by hand: correct it with openstack resource provider "
    "allocation set ID",
    "server's needs cannot be read": "its flavor or image has invalid extra specs or properties: delete the server "
    "and boot it with another flavor or image",
    "server without allocation": "a bug, or deleted by hand: restore it with openstack resource provider allocation "
    "set ID, or delete the server",
    "allocation differs from needs": "a bug, or changed by hand: correct it with openstack resource provider "
    "allocation set ID",
    "resize cannot be reverted": "a bug, or changed by hand: confirm the resize",
    "quota counts wrongly": "a bug, or a resize of an older release that is not confirmed; the next confirmed resize "
    "corrects it",
    "allocation without inventory": "a bug: restart the agent of the host, which reports the inventory again, or "
    "delete the server",
    "provider over capacity": "total, reserved or allocation ratio was lowered below the usage; the host takes no new "
    "servers: raise it again, or move or delete servers. If it was not lowered, it is a bug",
    "aggregate not mirrored": "take the host out of the aggregate and add it again",
    "disabled service not mirrored": "disable or enable the service again",
    "server group policy broken": "a server was moved by force, or a bug: migrate one of the servers, or delete it "
    "and boot it again in the group",
    "port without server": "a bug, or made by hand: openstack port delete ID",
    "server's port missing": "the port was deleted: delete the server and boot it again",
    "port on the wrong host": "a bug, or bound by hand: migrate the server, which binds its ports again",
    "standby binding without move": "a bug, or made by hand: delete it in the network service",
    "image stuck": "a bug, or an image service that was restored from a backup: openstack image delete ID",
    "attachment without device": "a bug, or made by hand: openstack volume attachment delete ID, when no guest uses "
    "the volume",
    "attachment without server": "a bug, or made by hand: openstack volume attachment delete ID",
    "device without attachment": "the attachment was deleted: detach the volume and attach it again, or if the server "
    "boots from it, shelve and unshelve the server",
    "server's volume missing": "the volume was deleted by force: detach it, or delete the server that booted from it",
    "attachment on the wrong host": "a bug, or a volume that could not be moved back: shelve and unshelve the server, "
    "which connects its volumes again",
    "volume stuck": "a bug, or set by hand: openstack volume set --state STATE ID, or delete it",
    "volume status differs": "set or reserved by hand: openstack volume set --state STATE ID",
    "guest's volumes differ": "a bug, or hosts restored from a copy: shelve and unshelve the server, which builds its "
    "guest again",
    "volume in several guests": "a bug, or hosts restored from a copy: immediately remove all but one of the guests, "
    "and check the data on the volume",
    "guest without server": "created by hand, a restored database or hosts, or a bug: remove the guest on its host",
    "guest missing": "the host has lost it: delete the server and boot it again",
    "guest on the wrong host": "a bug, or a restored database or hosts: remove the guest on that host",
    "guest kept without reason": "a bug, or hosts restored from a copy: remove the guest in that slot",
    "guest power differs": "changed outside of the cloud: start or stop the server as intended",
}
