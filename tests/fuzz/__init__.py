"""Bad input of every kind: what comes of it is a clear error, and never memory or time without bounds.

`make test` tries a few examples, always the same ones; `make fuzz` tries many more, others each time.
"""
