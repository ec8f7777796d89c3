"""`penstock bench peers`: the same stateful work in Penstock, Spark, Flink, Bytewax and Pathway.

stream.py      the stream: row i is a function of i; and the Python function that runs per key
timing.py      rows per second of bounded runs, without the time that a start takes
sides/         one program per engine; each runs in its own interpreter, so they import nothing of Penstock
engines.py     the compared sides: which interpreter each needs, and why one is missing
answers.py     DuckDB's answers, and the comparison with what a side wrote
bench.py       the parts, and their ratios;  latency.py: the part over Kafka
pictures.py    the chart
"""
