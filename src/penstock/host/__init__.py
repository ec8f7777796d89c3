"""Hosts, the long-lived tasks that hold state: a pure machine, its server, its life."""
