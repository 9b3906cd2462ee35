"""The simulated hypervisor: many hosts in one process, guests in a file, failures and delays by rules."""
