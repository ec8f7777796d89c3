"""Diagnose: finds hosts that cannot keep the SLA and hot keys, and predicts the effect of a change."""
