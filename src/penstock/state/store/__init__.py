"""The store: everything that a checkpoint keeps, versioned by epoch.

store.py         a checkpoint's files by name and meaning; files.py: any file system beneath it
places.py        where a checkpoint is; ownership.py: whose it is
manifest.py      which files make up a version; renaming.py: under other names of steps
segment.py       one sorted file of rows; blocks.py: its blocks and checksums
merging.py       many tables of rows into the newest row of each key
reader.py        the state of a version, read by key, by slot or by time
compaction.py    few files instead of many; retention.py: removing what nobody needs
dead_letters.py  rows that were set aside, in few files
"""
