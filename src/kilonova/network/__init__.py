"""The built-in network service, and compute's client to it or to a real Neutron."""
