"""What happens to rows between two steps: in couriers before they go to hosts, and inside a host of all
steps.

step_work  functions of stateless steps, senders of keyed ones; bad rows are refused or set aside
aside      rows that do not go on, as hosts tell them to couriers and couriers to the driver
split      which rows go to which host
tally      how many records go to each slot, and the most frequent keys
"""
