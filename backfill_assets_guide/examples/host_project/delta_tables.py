"""What others read of a published table: its newest version, by Arrow."""

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, SubTreeFileSystem


def open_table(url: str) -> ds.Dataset:
    """The rows of a table's newest version.

    By the file system of Arrow: with that of delta-rs, a process that ends at once may abort.

    Args:
        url: an absolute path, or the URL of an object store.
    """
    url = url.replace("s3a://", "s3://", 1)  # the scheme of Spark
    filesystem, folder = FileSystem.from_uri(url)
    return DeltaTable(url).to_pyarrow_dataset(filesystem=SubTreeFileSystem(folder, filesystem))
