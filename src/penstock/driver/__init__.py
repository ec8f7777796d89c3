"""The driver's part of a running query.

epochs.py, live.py    the two ways to run it: micro-batches, or runs of lasting streams with checkpoints
versions.py           what both make: manifests, one after the other, and upkeep behind them
checkpoints.py        which checkpoints of a live run are under way (pure)
crew.py               long-lived tasks: fleet.py are hosts, couriers.py those of a live flow
registry.py           where they register and are heard; silence_watch.py: who is not heard any more
crew_scaling.py       how many couriers there are, as control/crew_size.py plans it
relocation.py         which host has which slots, carried out
control_loop.py       what control decides, carried out; control_rehearsal.py compiles what it needs
recovery.py           faults, followed until all is well again
progress.py, bill.py, awaiting.py, journal_writer.py    what people are told
"""
