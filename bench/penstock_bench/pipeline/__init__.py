"""`penstock bench pipeline`: throughput, latency and memory of whole pipelines."""
