"""`penstock bench start`: the time until a flow's first epoch, of an import and of `--help`."""
