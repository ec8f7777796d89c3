"""When rows go to burst workers, how many of them, and to how many workers: pure."""
