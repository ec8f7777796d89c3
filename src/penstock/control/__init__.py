"""The control plane: examine, diagnose, treat. Pure: values in, values out, no clock, no I/O, no Spark.

A decision is made in four steps, each in a file of its own:

    examine     what the data plane counted      -> `Vitals` of a step
    project     rates and service rates          -> the latency that hosts would settle at
    policies    `Vitals` and `Bounds`            -> a `Decision`, with treatments and reasons
    controller  all steps of a flow over time: when to decide, when to wait, what to tell the journal

The live loop (`penstock.driver`) and the simulator (`penstock.sim`) run the same code.
"""
