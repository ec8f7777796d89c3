"""The courier's part: rows are given away, and what comes of them is taken in."""
