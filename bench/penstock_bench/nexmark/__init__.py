"""`penstock bench nexmark`: the NEXMark queries on Penstock and on Spark's own streaming."""
