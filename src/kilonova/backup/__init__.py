"""Backup and restore of a whole cloud: the database, the hosts' files, and the data directory."""
