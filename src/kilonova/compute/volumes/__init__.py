"""What compute offers of the volume service: old ways to its volumes and snapshots, and help with its snapshots."""
