"""The compiled flow, and the plan of an epoch that all its parts agree on.

steps.py         compiled steps and sources; columns.py: select and filter; one_step.py: a flow on one host
epoch.py         the plan of an epoch: routes, times, offloading
topology.py      which host owns which slot, and how that changes at a boundary
placement.py     where slots are and why; slots.py: sets of slots as text
spread.py        distribution of slots over hosts; splitting.py: requests to split slots
assignment.py    the message to a host when slots move; migration.py: how their state follows
watermarks.py    event time of sources and steps
reflex.py        offloading by couriers, within the epoch, when hosts are overloaded
"""
