"""`penstock bench nexmark`: the NEXMark queries beside plain Spark and SQL."""
