"""The plugin for the stock `openstack` client. It imports nothing of the service."""
