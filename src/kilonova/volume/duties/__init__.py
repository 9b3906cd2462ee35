"""What time brings at the volume service: duties like those of compute, which the same workers look after."""
