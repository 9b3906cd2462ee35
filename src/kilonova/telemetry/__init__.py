"""Logs, audit log and metrics of a process."""
