"""Drivers: what an agent does its work with, one package per kind of hypervisor."""
