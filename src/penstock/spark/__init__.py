"""The only place that runs on Spark: sessions, the epoch callback, host jobs, tasks, sinks."""
