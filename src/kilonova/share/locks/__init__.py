"""Resource locks of shares and access rules."""
