"""Services, hosts, pools and availability zones of the volume service."""
