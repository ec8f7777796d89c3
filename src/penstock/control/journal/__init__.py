"""The journal: decisions with their reasons, expected effects and outcomes."""
