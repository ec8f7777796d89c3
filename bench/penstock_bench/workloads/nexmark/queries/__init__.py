"""One module for each query: its SQL, and its flow."""
