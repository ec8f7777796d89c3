"""The control plane. Pure: values in, values out, no clock, no I/O, no Spark.

    events ──► machine.FlowControl ──► instructions        and `orders`, for the plan of the next epoch

One machine controls a flow. The live driver (`penstock.driver`), the simulator (`penstock.sim`), tests and
`penstock simulate --replay` pass it the same events and carry out its instructions. Each step has its own
part of the machine (`step_control`; `couriers` for stateless steps), built from these folders:

    examine/    counts from the data plane       -> `Vitals`: rates, latencies, backlogs
    diagnose/   `Vitals`                         -> the hosts that keep the SLA, and the effect of a change
    policies/   `Vitals` and `Bounds`            -> a `Decision`, with reasons
    treat/      decisions, shares of an end-to-end bound, and the load that burst workers carry
    realize/    the progress of treatments, from the decision until slots have moved
    journal/    the log of decisions, their reasons and their outcome
    record      a run's events as lines of JSON

`elastic` holds the user's settings, `money` the prices and costs, `offload_policy` the interface to the
policy for burst workers, and `crew_size` the number of couriers of a live flow.
"""
