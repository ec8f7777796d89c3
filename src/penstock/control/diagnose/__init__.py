"""Diagnose: which hosts can keep the SLA, which cannot, where a hot key is, what would come of a change."""
