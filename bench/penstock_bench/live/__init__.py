"""`penstock bench live`, and the parts shared by benchmarks of running queries: loads, trials, exact
latencies."""
