"""Windows: tumbling, hopping and sessions."""
