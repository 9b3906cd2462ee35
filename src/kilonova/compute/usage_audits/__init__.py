"""Usage audits: how many servers each host had in the last whole month."""
