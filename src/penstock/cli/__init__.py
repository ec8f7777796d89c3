"""The `penstock` command: verbs, options and help. What verbs do is in console/, sim/ and bench."""
