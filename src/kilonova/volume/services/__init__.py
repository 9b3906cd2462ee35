"""The parts of the volume service, its zones and pools."""
