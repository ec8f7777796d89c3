"""What people see of a query: its recording, and everything that is made from it.

moment.py         a query in one second: rates, latency, hosts, slots, moves, cost (values only)
recorder.py       takes a moment every second while a query runs, keeps and writes it
recording.py      the moments and the journal of one start of a flow, running or ended
trace.py          the spans of all processes in some triggers, also as a file for Perfetto
sentences.py      the journal in plain sentences
recorded_load.py  the load of a recorded run, as the simulator takes it
what_if.py        that load again, simulated under another policy or SLA
dashboard/        the web page of a query: its data, its server, its files
metrics/          figures for Prometheus, OpenTelemetry and Spark's listeners
report/           the report of a run: one HTML file, and PNG files
"""
