"""An external table, Delta or Parquet files: all rows as of a version, or those appended since.

It is only read. What was appended is known from the commits of a Delta table, and from the new
files of a Parquet folder.

Parquet files are grouped by their columns and read with one type for each: Spark alone applies the
types of one file to all, or fails without the name of the file.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from backfill_assets.delta.commit_log import CommitLog, file_uri
from backfill_assets.delta.delta_rs import delta_log, load_log
from backfill_assets.imports.import_state import ImportRefusedError, ParquetFile, TableImport
from backfill_assets.landing.files import escape_glob
from backfill_assets.landing.listing import FOLDER_MARK
from backfill_assets.landing.parquet import ParquetColumns, column_value, is_nanoseconds, value_type
from backfill_assets.spark.filesystems import in_object_store, open_store, read_options

#: Number of footers read at a time.
_READERS = 16
#: Integer types, the narrowest first, with the digits of a decimal that holds all their values.
_DIGITS: dict[type[T.DataType], int] = {
    T.ByteType: 3,
    T.ShortType: 5,
    T.IntegerType: 10,
    T.LongType: 20,
}
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
#: Types that a landing file may not have; an expression can make a field of them.
_BYTES = (
    (pa.types.is_binary, T.BinaryType()),
    (pa.types.is_large_binary, T.BinaryType()),
    (pa.types.is_duration, T.LongType()),
)
#: Maximum digits of a decimal.
_MOST_DIGITS = 38


def list_parquet_files(url: str) -> list[ParquetFile]:
    """The files of a folder that are not hidden, whatever their suffix."""
    filesystem, root = open_store(url)
    listed = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    files = []
    for info in listed:
        path = str(info.path).removeprefix(f"{root}/")
        if info.is_file and not any(map(_is_hidden, path.split("/"))):
            files.append(ParquetFile(path, info.size or 0, info.mtime_ns or 0))
    return sorted(files)


@dataclass(frozen=True)
class ExternalRows:
    """Rows of an external table.

    Attributes:
        rows: the columns that can be read.
        unreadable: the other columns, with their types.
    """

    rows: DataFrame
    unreadable: Mapping[str, str]


def read_files(spark: SparkSession, url: str, files: Sequence[ParquetFile]) -> ExternalRows:
    """The rows of files of a folder, with its partition columns as text.

    A column with several types gets a type that holds all values; a missing column is null. One
    that cannot be read in some file is left out.

    Raises:
        ImportRefusedError: a file is not a Parquet file, or its columns do not fit those of another
            file.
    """
    groups = _group_by_columns(url, files)
    partitions = [unquote(name) for name in _partition_columns(files[0])]
    unreadable = {name: kind for columns in groups for name, kind in columns.unreadable}
    left_out = {name.lower() for name in (*unreadable, *partitions)}
    parts = [
        _FilesOfOneSchema(url, group, _without_columns(columns, left_out), tuple(partitions))
        for columns, group in groups.items()
    ]
    types = _types_of_all(url, {part.files[0]: part.schema for part in parts})
    rows = reduce(
        partial(DataFrame.unionByName, allowMissingColumns=True),
        (part.read(spark, types) for part in parts),
    )
    return ExternalRows(
        rows, {name: kind for name, kind in unreadable.items() if name not in partitions}
    )


@dataclass(frozen=True)
class _FilesOfOneSchema:
    """Files of a folder with the same columns, and with the same partition columns."""

    url: str
    files: Sequence[ParquetFile]
    columns: ParquetColumns
    partitions: Sequence[str]

    @property
    def schema(self) -> T.StructType:
        """The columns with the types of their values; NullType for one of nulls only."""
        text = [(name, T.StringType()) for name in self.partitions]
        return T.StructType([T.StructField(*column) for column in (*self.columns.types, *text)])

    def read(self, spark: SparkSession, types: Mapping[str, T.DataType]) -> DataFrame:
        """The rows, with columns of these types, by lower-case name."""
        # Spark reads a struct with fields that a file lacks, and casts none to it.
        fields = [
            T.StructField(field.name, types[field.name.lower()])
            if isinstance(field.dataType, _NESTED)
            else field
            for field in (
                *self.columns.spark_schema,
                *self.schema.fields[len(self.columns.types) :],
            )
            if not isinstance(field.dataType, T.NullType)
        ]
        paths = [escape_glob(f"{self.url}/{file.path}") for file in self.files]
        reader = spark.read.options(basePath=self.url, **read_options(paths))
        rows = reader.schema(T.StructType(fields)).parquet(*paths)
        return rows.select(
            *(
                self._value(field).cast(types[field.name.lower()]).alias(field.name)
                for field in self.schema
            )
        )

    def _value(self, field: T.StructField) -> Column:
        if isinstance(field.dataType, T.NullType):
            return F.lit(None)
        return column_value(self.columns, field.name, field.dataType)


def _without_columns(columns: ParquetColumns, left_out: Collection[str]) -> ParquetColumns:
    """The columns of a file without some, by lower-case name."""
    return ParquetColumns(
        tuple((name, kind) for name, kind in columns.types if name.lower() not in left_out),
        frozenset(name for name in columns.nanoseconds if name.lower() not in left_out),
        (),
    )


def _is_hidden(name: str) -> bool:
    """Whether Spark ignores a file or folder by its name; `_name=value` is a partition folder."""
    return (name.startswith(("_", ".")) and "=" not in name) or name.endswith(FOLDER_MARK)


def _group_by_columns(
    url: str, files: Sequence[ParquetFile]
) -> Mapping[ParquetColumns, list[ParquetFile]]:
    """Group files by their columns: Spark reads each group by itself.

    Raises:
        ImportRefusedError: a file is not a Parquet file, or has other partition columns.
    """
    filesystem, root = open_store(url)

    def read_columns(file: ParquetFile) -> ParquetColumns | None:
        try:
            with filesystem.open_input_file(f"{root}/{file.path}") as opened:
                return _footer_columns(pq.read_metadata(opened))
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            return None

    with ThreadPoolExecutor(_READERS) as pool:
        columns_by_file = dict(zip(files, pool.map(read_columns, files), strict=True))
    if bad := [file for file, columns in columns_by_file.items() if columns is None]:
        names = ", ".join(f"{file.path}{'' if file.size else ' (empty)'}" for file in bad[:5])
        raise ImportRefusedError(
            f"{url}: {len(bad)} file(s) are not Parquet files: {names}. Nothing was written. Put "
            "whole files in their place, or move elsewhere what is no data: only names that begin "
            "with _ or . are passed over."
        )
    partitions = {file: _partition_columns(file) for file in files}
    if others := [file for file in files if partitions[file] != partitions[files[0]]]:
        raise ImportRefusedError(
            f"{url}: {others[0].path} lies in folders of other partitions than {files[0].path}. "
            "Nothing was written. Import each part of the folder by itself."
        )
    groups: dict[ParquetColumns, list[ParquetFile]] = {}
    for file, columns in columns_by_file.items():
        assert columns is not None
        groups.setdefault(columns, []).append(file)
    return groups


def _footer_columns(footer: pq.FileMetaData) -> ParquetColumns:
    """The columns of a file, nested ones included; those of one name in two spellings are not read.

    Spark's own inference fails on a type that it cannot read, even in a column that nobody uses.
    """
    schema = footer.schema.to_arrow_schema()
    leaves = [footer.schema.column(n) for n in range(len(footer.schema))]
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    spellings = Counter(name.lower() for name in schema.names)
    types, nanoseconds, unreadable = {}, set(), {}
    remaining = iter(leaves)
    for name, kind in zip(schema.names, schema.types, strict=True):
        column_type = _column_type(kind, remaining)
        if pa.types.is_null(kind):
            column_type = T.NullType()
        elif is_nanoseconds(kind) and name not in int96:
            column_type = value_type(kind)
            nanoseconds.add(name)
        if spellings[name.lower()] > 1:
            unreadable[name] = "several columns, in upper and lower case"
        elif column_type is None:
            unreadable[name] = str(kind)
        else:
            types[name] = column_type
    return ParquetColumns(tuple(types.items()), frozenset(nanoseconds), tuple(unreadable.items()))


def _column_type(kind: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> T.DataType | None:
    """The type that Spark reads a column as; None if it cannot read a part of it.

    Args:
        kind: Arrow's type of the column.
        leaves: the columns without parts of the file; those of this column are taken.
    """
    if pa.types.is_struct(kind):
        parts = [(part.name, _column_type(part.type, leaves)) for part in kind]
        fields = [T.StructField(name, part) for name, part in parts if part is not None]
        names = {name.lower() for name, _ in parts}
        return T.StructType(fields) if len(names) == len(fields) == len(parts) else None
    if any(is_kind(kind) for is_kind in _LISTS):
        element = _column_type(kind.value_type, leaves)
        return T.ArrayType(element) if element is not None else None
    if pa.types.is_map(kind):
        key, value = _column_type(kind.key_type, leaves), _column_type(kind.item_type, leaves)
        return T.MapType(key, value) if key is not None and value is not None else None
    leaf = next(leaves)
    if leaf.physical_type == "INT96":
        return T.TimestampType()
    if is_nanoseconds(kind):
        return None  # they would be integers
    if leaf.logical_type.type == "ENUM":
        return T.StringType()
    if pa.types.is_fixed_size_binary(kind) and leaf.logical_type.type == "NONE":
        return T.BinaryType()
    return value_type(kind) or next((to for is_kind, to in _BYTES if is_kind(kind)), None)


def _partition_columns(file: ParquetFile) -> list[str]:
    return [name.partition("=")[0] for name in file.path.split("/")[:-1] if "=" in name]


def _types_of_all(url: str, schemas: Mapping[ParquetFile, T.StructType]) -> dict[str, T.DataType]:
    """By lower-case column name, a type that holds the values of all files.

    Raises:
        ImportRefusedError: a column has no such type.
    """
    types: dict[str, tuple[ParquetFile, T.DataType]] = {}
    for file, schema in schemas.items():
        for field in schema:
            first_file, kind = types.get(field.name.lower(), (file, field.dataType))
            common = _common_type(kind, field.dataType)
            if common is None:
                raise ImportRefusedError(
                    f"{url}: the column {field.name} is {field.dataType.simpleString()} in "
                    f"{file.path} and {kind.simpleString()} in {first_file.path}, and no type "
                    "holds both. Nothing was written. Write one of the two anew, or import each "
                    "part of the folder by itself."
                )
            types[field.name.lower()] = first_file if common == kind else file, common
    return {name: kind for name, (_, kind) in types.items()}


def _common_type(first: T.DataType, second: T.DataType) -> T.DataType | None:
    """A type that holds all values of two types; None if there is none."""
    kinds = {type(first), type(second)}
    if first == second or isinstance(second, T.NullType):
        return first
    if isinstance(first, T.NullType):
        return second
    if len(kinds) == 1 and isinstance(first, _NESTED):
        return _common_nested(first, second)
    if kinds <= _DIGITS.keys():
        return max((first, second), key=lambda kind: _DIGITS[type(kind)])
    if kinds == {T.FloatType, T.DoubleType}:
        return T.DoubleType()
    if kinds <= {*_DIGITS, T.DecimalType}:
        decimals = [_as_decimal(kind) for kind in (first, second)]
        scale = max(kind.scale for kind in decimals)
        digits = scale + max(kind.precision - kind.scale for kind in decimals)
        return T.DecimalType(digits, scale) if digits <= _MOST_DIGITS else None
    return None


def _common_nested(first: T.DataType, second: T.DataType) -> T.DataType | None:
    """`_common_type` of two lists, maps or structs; a struct gets the fields of both."""
    if isinstance(first, T.ArrayType) and isinstance(second, T.ArrayType):
        element = _common_type(first.elementType, second.elementType)
        return T.ArrayType(element) if element else None
    if isinstance(first, T.MapType) and isinstance(second, T.MapType):
        key = _common_type(first.keyType, second.keyType)
        value = _common_type(first.valueType, second.valueType)
        return T.MapType(key, value) if key and value else None
    assert isinstance(first, T.StructType)
    assert isinstance(second, T.StructType)
    fields = {field.name: field.dataType for field in first}
    for field in second:
        common = _common_type(fields.get(field.name, field.dataType), field.dataType)
        if common is None:
            return None
        fields[field.name] = common
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def _as_decimal(kind: T.DataType) -> T.DecimalType:
    """The decimal type that holds all values of a decimal or integer type."""
    digits = _DIGITS.get(type(kind))
    return T.DecimalType(digits, 0) if digits else cast("T.DecimalType", kind)


@dataclass(frozen=True)
class NewData:
    """The data of a table that is not imported yet.

    Attributes:
        version: the last version to import.
        since: the last imported version; None to import all.
        size: total bytes of the files.
        files: the files of a Parquet folder.
        add_actions: the `add` actions of a Delta table.
    """

    version: int
    since: int | None
    size: int
    files: list[ParquetFile]
    add_actions: Sequence[Mapping[str, Any]] = ()
    skipped: Sequence[int] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to land."""
        return not (self.since is None or self.files or self.add_actions)


class ImportableTable(Protocol):
    """A table that other systems write."""

    @property
    def kind(self) -> str:
        """`delta` or `parquet`."""

    @property
    def table_id(self) -> str:
        """Delta's id of the table; empty for Parquet files."""

    def find_new_data(self, table_import: TableImport) -> NewData:
        """The data that is not imported yet.

        Raises:
            ImportRefusedError: imported data was removed or changed, or commits are missing.
        """

    def read_rows(self, spark: SparkSession, new_data: NewData, scratch: str) -> ExternalRows:
        """The rows of the new data; files of the reader go to a temporary folder."""


def normalize_url(table: str) -> str:
    """The folder or URL of a table in the form that is saved."""
    return table.rstrip("/") if in_object_store(table) else str(Path(table).expanduser().resolve())


def open_external_table(url: str) -> ImportableTable:
    """Open the Delta table or the Parquet files in a folder.

    Raises:
        ImportRefusedError: there are none.
    """
    log = load_log(url)
    if log is not None:
        return _DeltaTable(url, str(log.metadata().id), log.version())
    if not list_parquet_files(url):
        raise ImportRefusedError(
            f"{url} holds no Delta table and no Parquet files. Nothing was written. Give the "
            "folder of the table, as a path or as a URL (s3a://, gs://, abfss://)."
        )
    return _ParquetFolder(url)


@dataclass(frozen=True)
class _DeltaTable:
    url: str
    table_id: str
    version: int
    kind: str = "delta"

    def find_new_data(self, table_import: TableImport) -> NewData:
        """All rows if the import has no version yet, else the files that later commits added."""
        if table_import.version < 0:
            return NewData(
                self.version, None, _total_bytes(delta_log(self.url, self.version).load()), []
            )
        if table_import.table_id != self.table_id or table_import.version > self.version:
            raise ImportRefusedError(
                f"{self.url} is another table than the one that was imported up to version "
                f"{table_import.version}: it was made again. Nothing was written. What was "
                "imported stays. Give the new table a folder of its own, and import that."
            )
        adds = list(self._added_files(table_import.version, self.version, table_import.skipped))
        return NewData(
            self.version,
            table_import.version,
            sum(add["size"] for add in adds),
            [],
            adds,
            table_import.skipped,
        )

    def _added_files(
        self, since: int, upto: int, skipped: Sequence[int] = ()
    ) -> Iterator[Mapping[str, Any]]:
        """The `add` actions with new rows of the commits after a version."""
        commits = CommitLog(self.url)
        for version in range(since + 1, upto + 1):
            if version in skipped:
                continue
            text = commits.read_commit(version)
            if text is None:
                raise ImportRefusedError(
                    f"{self.url}: the commit of version {version} is gone from the log, so nobody "
                    f"can tell what was appended since version {since}. Nothing was written. Land "
                    "the rows since then as files of the source, and pass over with --skip "
                    f"{version}. Follow the table more often than its log is kept "
                    "(delta.logRetentionDuration)."
                )
            actions = [json.loads(line) for line in text.splitlines()]
            _raise_if_removed(self.url, version, actions)
            for action in actions:
                if (add := action.get("add")) and add.get("dataChange", True):
                    yield add

    def read_rows(self, spark: SparkSession, new_data: NewData, scratch: str) -> ExternalRows:
        """All rows of the version, or those of the added files, by a log that names only these."""
        reader = spark.read.format("delta")
        if new_data.since is None:
            return ExternalRows(reader.option("versionAsOf", new_data.version).load(self.url), {})
        # Let Delta read the files: write a log that names only these.
        log_folder = f"{scratch}/appended"
        log = delta_log(self.url, new_data.version).load()
        adds = new_data.add_actions or self._added_files(
            new_data.since, new_data.version, new_data.skipped
        )
        _write_log(
            log_folder, [*_log_header(log), *(_with_absolute_path(self.url, add) for add in adds)]
        )
        return ExternalRows(reader.load(log_folder), {})


def _raise_if_removed(url: str, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    """Raise if a commit deletes or changes rows; a compaction does not, by its `dataChange`."""
    removed = [a["remove"] for a in actions if a.get("remove", {}).get("dataChange")]
    marked = [a["add"] for a in actions if a.get("add", {}).get("deletionVector")]
    if removed or any(add.get("dataChange", True) for add in marked):
        commit_info: Mapping[str, Any] = next(
            (a["commitInfo"] for a in actions if "commitInfo" in a), {}
        )
        raise ImportRefusedError(
            f"{url}: version {version} ({commit_info.get('operation', 'unknown')}) took rows away "
            "or changed them. A raw log only grows, so this cannot be followed. Nothing was "
            "written. Land what has changed as newer versions of the keys, in files of the source, "
            f"and pass over this version with --skip {version}."
        )


def _total_bytes(log: DeltaTable) -> int:
    actions = pa.table(log.get_add_actions(flatten=True))
    return int(pc.sum(actions["size_bytes"]).as_py() or 0) if actions.num_rows else 0


def _log_header(log: DeltaTable) -> list[dict[str, Any]]:
    """The protocol and metadata of a log, as actions: what a reader needs to read its files."""
    protocol, metadata = log.protocol(), log.metadata()
    protocol_fields: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    names = {
        name: value
        for name, value in metadata.configuration.items()
        if name.startswith("delta.columnMapping.")
    }
    columns = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": log.schema().to_json(),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": names,
    }
    return [{"protocol": {k: v for k, v in protocol_fields.items() if v}}, {"metaData": columns}]


def _with_absolute_path(url: str, add: Mapping[str, Any]) -> dict[str, Any]:
    """An `add` action with an absolute path, for the log of another table."""
    path = str(add["path"])
    if "://" not in path and not path.startswith("file:"):
        path = file_uri(url, path)
    return {"add": {**add, "path": path}}


def _write_log(folder: str, actions: Sequence[Mapping[str, Any]]) -> None:
    filesystem, path = open_store(folder)
    filesystem.create_dir(f"{path}/_delta_log", recursive=True)
    with filesystem.open_output_stream(f"{path}/_delta_log/{0:020d}.json") as stream:
        stream.write("".join(f"{json.dumps(action)}\n" for action in actions).encode())


@dataclass(frozen=True)
class _ParquetFolder:
    url: str
    table_id: str = ""
    kind: str = "parquet"

    def find_new_data(self, table_import: TableImport) -> NewData:
        """The files that no step has read; an imported file must keep its size and time."""
        imported_files = {file.path: file for step in table_import.steps for file in step.read}
        current = {file.path: file for file in list_parquet_files(self.url)}
        if changed_paths := sorted(
            path for path, file in imported_files.items() if current.get(path) != file
        ):
            raise ImportRefusedError(
                f"{self.url}: {len(changed_paths)} file(s) that were imported are gone or "
                "changed, such as "
                f"{changed_paths[0]}. A raw log only grows, so this cannot be followed. "
                "Nothing was "
                "written. Put the files back, or import the folder as it is now into a landing and "
                "a warehouse of its own."
            )
        new = [file for path, file in current.items() if path not in imported_files]
        since = table_import.version if table_import.version >= 0 else None
        size = sum(file.size for file in new)
        return NewData(table_import.version + bool(new), since, size, new)

    def read_rows(self, spark: SparkSession, new_data: NewData, scratch: str) -> ExternalRows:
        return read_files(spark, self.url, new_data.files)
