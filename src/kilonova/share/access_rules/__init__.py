"""Access rules: who may mount a share."""
