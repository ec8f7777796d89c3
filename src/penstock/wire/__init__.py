"""The network layer: messages, and Arrow Flight with a token.

flight.py                    servers and clients of all endpoints
access.py, control_key.py    tokens, TLS, and the key of `penstock ctl`
addresses.py                 where servers listen, and how others reach them
messages.py, live.py         messages between couriers and hosts: in micro-batches, in live runs
orders.py                    arguments of actions
report.py                    a courier's report of an epoch
silence.py                   how long others have not answered
"""
