"""Keys: from key columns to encoded bytes, hashes, slots and entry numbers.

codec.py           key columns <-> `Keys`; slots of hashes
encoding.py        byte encoding of keys that are not a single integer
index.py           mapping of keys to dense entry numbers
slot_map.py        slots of hashes where some slots are split
text.py            parsing and display of keys and values
kernels.py, index_kernels.py    compiled loops
"""
