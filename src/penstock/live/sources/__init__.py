"""Sources that live couriers read by themselves."""
