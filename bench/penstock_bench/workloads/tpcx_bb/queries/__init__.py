"""The queries, one module each; see `catalog`."""
