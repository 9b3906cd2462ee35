"""What to do about each kind of finding of the doctor."""

from __future__ import annotations

# Operations put right whatever they touch, so much is repaired by deleting and booting anew. Where only a bug can be
# the cause, it says so: then the finding is worth a report, together with `kilonova operations` of the server.
REMEDIES = {
    "operation stuck": "see what it waits for in its reason; it goes on by itself once that is over. A kind or step "
    "that this release does not know waits for a worker of the release that does",
    "leftover on a host": "see its reason; it goes on by itself once the host can. If that never comes, remove the "
    "guest there by hand, or delete the service of a host that does not come back",
    "transient state without operation": "a bug: delete the server and boot it anew",
    "offloaded server on a host": "a bug: delete the server",
    "resize undecided": "a bug: delete the server and boot it anew",
    "allocation without server": "a bug, or made by hand: openstack resource provider allocation delete ID",
    "allocation without move": "a bug, or made by hand: openstack resource provider allocation delete ID",
    "consumer without allocations": "a bug; it holds nothing and goes with the next allocations of that consumer",
    "allocation on the wrong host": "a bug, or moved by hand: put it right with openstack resource provider "
    "allocation set ID",
    "server's needs cannot be read": "its flavor or image asks for what no release understands: delete it and boot it "
    "with another",
    "server without allocation": "a bug, or deleted by hand: give it back with openstack resource provider allocation "
    "set ID, or delete the server",
    "allocation differs from needs": "a bug, or changed by hand: put it right with openstack resource provider "
    "allocation set ID",
    "resize cannot be reverted": "a bug, or changed by hand: confirm the resize",
    "quota counts wrongly": "a bug; a resize, once confirmed, puts it right",
    "allocation without inventory": "a bug: have the host report its inventory by restarting it, or delete the server",
    "provider over capacity": "total, reserved amount or ratio were lowered below what is in use, and nothing new "
    "goes there: raise them again, or delete servers there. If nobody lowered them, it is a bug",
    "aggregate not mirrored": "take the host out of the aggregate and add it again",
    "disabled service not mirrored": "disable or enable the service once more, as it is meant to be",
    "server group policy broken": "somebody moved a server by force, or a bug: migrate one of the servers, or delete "
    "it and boot it anew in the group",
    "port without server": "a bug, or made by hand: openstack port delete ID",
    "server's port missing": "somebody deleted it: delete the server and boot it anew",
    "port on the wrong host": "a bug, or bound by hand: migrate the server, which binds its ports anew",
    "standby binding without move": "a bug, or made by hand: delete it in the network service",
    "attachment without device": "a bug, or made by hand: openstack volume attachment delete ID, once no guest has the "
    "volume",
    "attachment without server": "a bug, or made by hand: openstack volume attachment delete ID",
    "device without attachment": "somebody deleted the attachment: detach the volume and attach it again, or if the "
    "server boots from it, shelve and unshelve the server",
    "server's volume missing": "somebody deleted it by force: detach it, or delete the server that booted from it",
    "attachment on the wrong host": "a bug, or a volume that could not be moved back: shelve and unshelve the server, "
    "which connects its volumes anew",
    "volume stuck": "a bug, or set by hand: openstack volume set --state STATE ID, or delete it",
    "volume status differs": "set or reserved by hand: openstack volume set --state STATE ID",
    "guest's volumes differ": "a bug, or hosts restored from a copy: shelve and unshelve the server, which builds its "
    "guest anew",
    "volume in several guests": "a bug, or hosts restored from a copy: remove all but one of the guests at once, and "
    "check what is on the volume",
    "guest without server": "made there by hand, or hosts restored from a copy, or a bug: remove the guest on its host",
    "guest missing": "lost by its host: delete the server and boot it anew",
    "guest on the wrong host": "a bug, or hosts restored from a copy: remove the guest on that host",
    "guest kept without reason": "a bug, or hosts restored from a copy: remove what the host keeps in that slot",
    "guest power differs": "switched outside of the cloud: start or stop the server as it is meant to be",
}
