"""The limits for threads. `make_sync.py` makes all files of this folder but `_io.py` from those of `_async`."""
