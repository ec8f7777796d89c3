"""A running query, watched and controlled from another process: `penstock ctl`.

query.py      connects to the query, sends requests, reads its journal
recording.py  its recording and orders to it, for `penstock dashboard`
view.py     the output of `penstock ctl`
watch.py      `penstock ctl watch`: follows the query; page.py draws it
"""
