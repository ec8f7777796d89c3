"""Bursts: rows that hosts cannot take in time go to burst workers, for as long as that lasts.

A burst worker is a short-lived worker (a forked process, or a Lambda invocation) that makes partial
states of rows, or does stateless steps, and keeps nothing. Users know them as `functions`.

The story of a burst, by folder:

    plan/      When a flow is built, `segments` finds what one invocation can run: stateless steps and
               the keyed one behind them. `graph` draws the result for `flow.explain()`.
    backends/  When a query starts, a `backend` starts burst workers: `local` processes or `aws` Lambda.
    policy/    After each epoch the policy compares the load with what hosts can take, and decides
               which share of each slot's rows burst workers get in the next one. It also says how many rows
               are too many, so that couriers can react in the epoch that brings them (the reflex).
    driver/    The driver keeps burst workers warm, and writes shares and reflex into the epoch's plan.
    courier/   A courier parts its rows by that plan, cuts the burst workers' part into requests, and
               waits for answers until a deadline. Rows without an answer it combines itself.
    backends/  A `worker` runs the segment's steps on a request's rows and answers with partial states.
    courier/   Partial states go to the hosts that own their keys, on a channel of their own.

There the host merges them into its state (`host/`), in the same epoch, as it merges what couriers combine.
"""
