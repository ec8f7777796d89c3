"""The first rows of each key in an order, and the first row of each key that comes."""
