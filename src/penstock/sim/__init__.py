"""The simulator: the control code of the live loop over a data plane that is made up.

Hours of a trace pass in seconds, so policies can be compared, and a trace of one's own tried, before
anything is started. A reader can follow a run by the files:

    workload       what there is to simulate, by name
    trace          how many records arrive for each slot in each time slot
    plane          what the made-up hosts, treatments and engine are like
    fleet          the hosts of a step: which own what, and treatments that take time
    burst_workers  those that may help a step: what they are like, which are ready, what they cost
    queues         an engine without epochs, record by record; `kernels` are its compiled loops
    epochs         an engine of epochs, with burst workers or without
    stage          one step: its fleet, its burst workers, and its `ledger` of what arrived and completed
    loops          time passes: the data plane goes on, and does what the control machine says
    run            one step, or several with an end-to-end bound; `outcome` is what comes out
    replay         no simulation: recorded events of a live run, decided once more
    success        the share of windows that keep an SLA; also for live runs

Everything is decided by the settings and the seed: the same again gives the same again.
"""
