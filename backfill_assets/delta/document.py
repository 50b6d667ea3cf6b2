"""A document with compare-and-set, stored as the commits of its own Delta log.

Only a Delta log does this the same way on a local disk and on an object store. The table has no
rows; the last commit holds the document.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType

from backfill_assets.delta.commit_log import CommitLog
from backfill_assets.delta.delta_rs import delta_log, storage_options

_SCHEMA = Schema([Field("target", PrimitiveType("string"))])
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
#: The revision before the first commit.
NO_REVISION = -1


class Document(NamedTuple):
    """A document; its revision is the version of the log."""

    revision: int
    text: str


def read_document(url: str) -> Document | None:
    """Read the document; None if there is none."""
    commits = CommitLog(url)
    revision = max(commits.list_versions(), default=NO_REVISION)
    lines = (commits.read_commit(revision) or b"").splitlines()
    texts = (json.loads(line).get("commitInfo", {}).get("userMetadata") for line in lines)
    text = next(filter(None, texts), None)
    return None if text is None else Document(revision, text)


def write_document(url: str, text: str, base_revision: int) -> int | None:
    """Write the document if its revision is `base_revision`; returns the new revision, else None.

    Raises:
        DeltaError, OSError: the store cannot be written to.
    """
    properties = CommitProperties({"userMetadata": text}, max_commit_retries=0)
    options = storage_options(url)
    try:
        if base_revision == NO_REVISION:
            DeltaTable.create(url, _SCHEMA, storage_options=options, commit_properties=properties)
        else:
            delta_log(url, base_revision).load().create_write_transaction(
                [],
                "append",
                _SCHEMA,
                commit_properties=properties,
                post_commithook_properties=_NO_HOOKS,
            )
    except DeltaError:
        current = read_document(url)
        if current is None and base_revision != NO_REVISION:
            return None  # it was dropped
        if current is None or current.revision <= base_revision:
            raise
        return base_revision + 1 if current == (base_revision + 1, text) else None
    return base_revision + 1
