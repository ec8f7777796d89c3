"""The parts of `penstock bench live`."""
