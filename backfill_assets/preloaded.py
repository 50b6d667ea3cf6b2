"""The imports and definitions of every run, loaded once by the process that forks the runs."""

import contextlib
import gc

with contextlib.suppress(Exception):  # the run itself reports the error
    from backfill_assets.definitions import defs

    defs().get_repository_def()
    # pandera imports them where a frame is validated first.
    from pandera.backends.pyspark.register import register_pyspark_backends

    register_pyspark_backends()

# Forked runs share the memory of these objects, and do not scan them for garbage.
gc.collect()
gc.freeze()
