"""The exchange of rows between two steps: in couriers before rows are sent to hosts, and inside a host that
runs all steps.

step_work  functions of stateless steps, senders of keyed steps; bad rows fail the step or are set aside
aside      dead letters and late rows, which hosts report to couriers and couriers to the driver
split      splitting batches by host
tally      counting records per slot, and the most frequent keys
"""
