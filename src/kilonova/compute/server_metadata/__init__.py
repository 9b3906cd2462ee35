"""What users say of their servers, and their servers are told."""
