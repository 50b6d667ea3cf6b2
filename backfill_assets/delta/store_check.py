"""Whether an object store keeps the commits of several writers apart.

Who commits creates a file that may not be there yet. A store that overlooks this condition lets two
writers make the same version, and the commit of one is gone without a word.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType

from backfill_assets.delta.logs import delta_log, storage_options
from backfill_assets.engine.stores import on_s3, open_store

_WRITERS, _ROUNDS = 4, 3
_PROBE_SCHEMA = Schema([Field("probe", PrimitiveType("integer"))])


class UnsafeStoreError(RuntimeError):
    """Commits on a store could be lost; nothing was written to any table."""


@cache
def refuse_unsafe_store(warehouse: str) -> None:
    """See, once a process, that of several commits of the same version one comes about.

    Args:
        warehouse: the folder of the tables; a small table is made in it and removed.

    Raises:
        UnsafeStoreError: two came about.
        DeltaError, OSError: the store cannot be written to.
    """
    if not on_s3(warehouse):
        return
    url = f"{warehouse}/_backfill_assets-{uuid4().hex}"
    DeltaTable.create(url, _PROBE_SCHEMA, storage_options=storage_options(url))
    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in range(_ROUNDS):
                writers = [delta_log(url).load() for _ in range(_WRITERS)]
                if sum(pool.map(_commit_succeeds, writers)) > 1:
                    raise UnsafeStoreError(
                        f"the store of {warehouse} overlooks conditions of a PUT (If-None-Match), "
                        "so that of two runs that commit at the same time one would be lost: use a "
                        "store or a version of it that has conditional writes. No table was touched"
                    )
    finally:
        filesystem, path = open_store(url)
        with suppress(OSError):
            filesystem.delete_dir(path)


def _commit_succeeds(log: DeltaTable) -> bool:
    """Whether a commit of the next version comes about."""
    try:
        log.create_write_transaction(
            [],
            "append",
            _PROBE_SCHEMA,
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )
    except DeltaError:
        return False
    return True
