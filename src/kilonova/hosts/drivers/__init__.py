"""Hypervisor drivers, one package each."""
