"""Bursts: rows that hosts cannot take in time go to burst workers, for as long as that lasts.

A burst worker is a short-lived worker (a forked process, or a Lambda invocation) that makes partial
states of rows, or does stateless steps, and keeps nothing. Users know them as `functions`.

The story of a burst, by folder:

    plan/      When a flow is built, `segments` finds what one invocation can run: stateless steps and
               the keyed one behind them. `graph` draws the result for `flow.explain()`.
    keeper     When a query starts, the driver's `WorkerKeeper` brings burst workers up in the background,
               keeps some warm, and replaces those that do not answer.
    backends/  A `backend` is where they run: `local` processes or `aws` Lambda.
    policy/    After each epoch, `observe` sets the load beside what hosts can take; `burst` tells whether
               a burst lasts and burst workers answer; `shares` works out how much of each slot's rows
               they get, and how many of them; `offloader` decides so for a step, `flow` for all steps,
               and writes it into the next epoch's plan. `reflexes` adds how many rows are too many, so
               that couriers can react in the epoch that brings them.
    courier/   A `router` parts a task's rows by that plan. `questions` cuts the burst workers' part into
               requests and waits for answers until a deadline; rows without one the courier does itself.
    backends/  A `worker` runs the segment's steps on a request's rows and answers with partial states.
    courier/   `keyed_road` brings partial states to the hosts that own their keys, on a channel of their
               own; `stateless_road` puts rows in the place of those that they are made of.
               For a live courier `redirect` does all of this, chunk by chunk and without waiting.

There the host merges them into its state (`host/`), in the same epoch, as it merges what couriers combine.
"""
