"""What Kilonova adds to the stock `openstack` client. It loads nothing of the service itself."""
