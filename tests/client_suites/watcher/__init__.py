"""Watcher beside a cloud with two zones."""
