"""The `penstock` command: verbs, options and help. Verbs call code in console/, sim/ and bench."""
