"""The simulator: the real control code over a simulated data plane.

Hours of a trace pass in seconds. So a user can compare policies, or try a trace of their own, before starting
a query. These files make up a run:

    workload       workloads to simulate, by name
    trace          arrivals per slot and time slot
    plane          settings of the simulated hosts, treatments and engine
    fleet          the hosts of a step, the slots they own, and treatments, which take time
    burst_workers  the burst workers of a step: their settings, state and costs
    queues         an engine without epochs, record by record; `kernels` has its compiled loops
    epochs         an engine with epochs, with or without burst workers
    stage          one step: its fleet, its burst workers, and its `ledger` of arrivals and completions
    loops          the loop over time: runs the data plane and carries out the machine's instructions
    run            simulates one step, or several with an end-to-end bound; `outcome` holds the results
    replay         no simulation: decides again on the recorded events of a real run
    success        the share of windows that keep an SLA, also for real runs

The settings and the seed determine everything: the same input gives the same result.
"""
