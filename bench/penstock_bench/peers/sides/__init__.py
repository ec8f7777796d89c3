"""One program per engine: `python -m penstock_bench.peers.sides.NAME TASK HOW SECONDS FOLDER WORDS`.

HOW "answer" processes the small stream and writes lines with the numbers of each output row below
FOLDER/answer. "time" measures the rows per second, and prints them as JSON on the last line. "both" does one
after the other. State is made durable each second, below FOLDER.
"""
