"""The disks of servers beside those that every server has."""
