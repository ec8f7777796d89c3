"""A running query, seen and steered from another process: `penstock ctl`.

query.py    how to reach it, what to ask it for, its journal
view.py     what `penstock ctl` prints
watch.py    `penstock ctl watch`: follows the query; page.py: how that is drawn
"""
