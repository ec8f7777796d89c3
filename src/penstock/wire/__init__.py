"""What crosses the network: messages, couriers' reports, and Arrow Flight with a token."""
