"""The limits for asyncio. `make_sync.py` makes the limits for threads, in `_sync`, from all files of this folder but `_io.py`."""
