"""When rows are given away, how many of them, and to how many workers: pure."""
