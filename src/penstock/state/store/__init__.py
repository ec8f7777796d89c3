"""The store: the contents of a checkpoint, versioned by epoch.

store.py         a checkpoint's files by name and meaning; files.py: any file system beneath it
places.py        location of a checkpoint; ownership.py: its owner; s3.py: options and errors of S3
manifest.py      the files that make up a version; renaming.py: new names of steps in them
segment.py       one sorted file of rows; blocks.py: its blocks and checksums
merging.py       merging of tables of rows to the newest row of each key
reader.py        reading the state of a version by key, by slot or by time
compaction.py    merging many files into few; retention.py: removing files that are not needed
dead_letters.py  rows that were set aside, in few files
start_files.py   packed lines that one start of a flow wrote: events, moments
"""
