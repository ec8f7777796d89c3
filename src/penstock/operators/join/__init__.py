"""Joins of two inputs on equal keys: in a window, within an interval, or of all rows."""
