"""A checkpoint looked into from outside, without Spark or a running query: `penstock state`.

checkpoint.py    overview, entries, history of a key, slots
files.py         the files of a step at a version, and what they say together
facts.py         what is told, as values
view.py          how that is printed
"""
