"""The driver's part of a running query.

epochs.py, live.py    the two ways to run a flow: micro-batches, or long-lived streams with checkpoints
versions.py           manifests, one per epoch, for both; upkeep.py compacts and cleans the store behind them
checkpoints.py        checkpoints of a live run that are in progress (pure)
crew.py               long-lived Spark tasks: fleet.py for hosts, couriers.py for couriers of a live flow
registry.py           the service where they register; silence_watch.py finds those that stopped responding
recovery.py           faults, tracked until all is well again
crew_scaling.py       scales the couriers, as control/crew_size.py plans it
relocation.py         moves slots between hosts
control_loop.py       carries out what control decides; control_rehearsal.py compiles its kernels first
progress.py, bill.py, awaiting.py    what users see: progress, cost, waits
phases.py             where the time of a trigger went, phase by phase (pure)
journal_writer.py     writes the journal, control's events and the recording to the checkpoint
"""
