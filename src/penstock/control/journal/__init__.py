"""The journal: what was decided and why, what was expected, and what came of it."""
