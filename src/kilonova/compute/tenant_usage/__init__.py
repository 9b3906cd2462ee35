"""What projects have used, by the time that their servers were there."""
