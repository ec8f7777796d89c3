"""Which parts of a flow can be given to short-lived workers."""
