"""`python -m penstock` is the `penstock` command."""

from penstock.cli.app import main

main()
