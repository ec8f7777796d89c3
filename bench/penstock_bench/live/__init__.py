"""What benchmarks of running queries share: scenarios, truth, outcomes."""
