"""What a flow is when it is compiled, and what every part of it agrees on in an epoch.

steps.py         compiled steps and sources
epoch.py         the plan of an epoch: routes, times, offloading
topology.py      which host owns which slot, and how that changes at a boundary
placement.py     where slots are and why; slots.py: sets of slots as text
spread.py        sharing slots out among hosts
assignment.py    what a host is told when slots change hands; migration.py: how state follows them
watermarks.py    event time of sources and steps
reflex.py        what couriers do about more rows than hosts can take
"""
