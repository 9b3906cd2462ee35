"""Block devices: volumes of servers, and local disks beside those of the flavor."""
