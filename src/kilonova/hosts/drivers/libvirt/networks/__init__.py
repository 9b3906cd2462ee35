"""The networks of a host's guests: bridges, addresses, firewalls, and the ways between hosts and to the outside."""
