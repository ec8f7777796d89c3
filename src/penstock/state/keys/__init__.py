"""Keys: from key columns to encoded bytes, hashes, slots and entry numbers.

codec.py           key columns <-> `Keys`; slots of hashes
encoding.py        the bytes of keys that are not one integer
index.py           keys as dense entry numbers
text.py            keys and values as people type and read them
kernels.py, index_kernels.py    their compiled loops
"""
