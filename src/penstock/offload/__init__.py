"""Bursts: rows that hosts cannot process in time go to burst workers while a burst lasts.

A burst worker is a short-lived worker (a forked process, a container, a Lambda invocation). It makes partial
states of rows, or runs stateless steps, and keeps no state. In the public API they are called `functions`.

How a burst is handled, by folder:

    plan/      When a flow is built, `segments` finds the pieces that one invocation can run: stateless
               steps and the keyed one behind them. `graph` draws the result for `flow.explain()`.
    keeper     When a query starts, the driver's `WorkerKeeper` starts burst workers in the background,
               keeps some warm, and replaces those that do not answer.
    backends/  A `backend` is where they run: `local` processes, `http` containers, `aws` Lambda, or a user's
               own.
    policy/    After each epoch, `observe` compares the load with the capacity of hosts. `burst` decides
               whether a burst lasts, and whether burst workers can be trusted. `shares` computes the
               share of each slot's rows for them, and how many workers are needed. `offloader` decides
               for one step, `flow` for all steps, and writes the result into the next epoch's plan.
               `reflexes` adds a limit of rows: couriers react within the epoch that exceeds it.
    courier/   A `router` splits a task's rows by that plan. `questions` makes requests of the burst
               workers' part, and waits for answers until a deadline. The courier does rows without an
               answer itself. `health` keeps rows from burst workers that hang. `profile` measures speed.
    backends/  A `worker` runs the segment's steps on a request's rows and answers with partial states.
    courier/   `keyed_road` sends partial states to the hosts that own their keys, on a separate channel.
               `stateless_road` puts output rows in the place of their input rows.
               For a live courier, `redirect` does all of this, chunk by chunk and without waiting.

The host merges partial states into its state (`host/`), in the same epoch, as it merges those of couriers.
"""
