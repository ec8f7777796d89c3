"""What crosses the network: messages, orders, couriers' reports, and Arrow Flight with a token."""
