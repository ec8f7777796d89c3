"""What crosses the network: messages, and Arrow Flight with a token."""
