"""What every run imports and builds: imported once, by the process that runs are forked from."""

import contextlib
import gc

with contextlib.suppress(Exception):  # a run itself says what is wrong
    from backfill_assets.definitions import defs

    defs().get_repository_def()

# Runs share these objects with the process that they are forked from, and do not look through them.
gc.collect()
gc.freeze()
