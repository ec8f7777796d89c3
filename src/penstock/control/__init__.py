"""The control plane. Pure: values in, values out, no clock, no I/O, no Spark.

    events ──► machine.FlowControl ──► instructions        and `orders`, for the plan of the next epoch

One machine controls a flow. The live driver (`penstock.driver`), the simulator (`penstock.sim`), tests and
`penstock simulate --replay` hand it the same events and do what it says. Inside it, for each step
(`step_control`; `couriers` for stateless steps):

    examine/    what the data plane counted      -> `Vitals`: rates, latencies, backlogs
    diagnose/   `Vitals`                         -> which hosts keep the SLA, and what a change would bring
    policies/   `Vitals` and `Bounds`            -> a `Decision`, with reasons
    treat/      what a decision holds; shares of a bound; what burst workers carry beside hosts
    realize/    where treatments stand, from the decision until slots have moved
    journal/    what is told of it
    record      a run's events as lines of JSON

`elastic` is what a user asks for, `money` what it costs, `offload_policy` who decides about burst workers,
`crew_size` how many couriers a live flow has.
"""
