"""The report of a run: one HTML file that needs nothing else, and PNG files for documents.

summary.py    a recorded run in figures and sentences (pure)
html.py       the report: the summary above the dashboard's charts, in one file
plots.py      plots as PNG files, with matplotlib
"""
