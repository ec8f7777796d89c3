"""The driver's part of a running query: registry and fleet of hosts, epochs, progress, upkeep."""
