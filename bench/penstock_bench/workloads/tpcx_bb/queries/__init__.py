"""One module for each query; see `catalog`."""
