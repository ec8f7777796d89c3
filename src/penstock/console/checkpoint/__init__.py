"""Read-only views of a checkpoint, without Spark or a running query: `penstock state`.

checkpoint.py    overview, entries, history of a key, slots
files.py         the files of a step at a version, and their merged content
facts.py         the results, as values
view.py          tables and JSON of the results
"""
