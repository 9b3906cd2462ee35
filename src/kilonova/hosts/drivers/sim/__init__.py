"""The simulated hypervisor: thousands of hosts in a process, their guests on disk, their troubles made to order."""
