"""A folder of Parquet files as one table: which files are its data, and columns of several types.

Files are taken as Spark takes them, but each by its own columns: Spark alone reads the types of one
file into all, or fails without the name of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from backfill_assets.engine.stores import open_store
from backfill_assets.imports.manifests import ImportRefusedError, ParquetFile
from backfill_assets.landing.files import escape_glob
from backfill_assets.landing.listing import FOLDER_MARK

#: So many footers are read at a time.
_READERS = 16
#: Whole numbers, the narrowest first, by the digits of a decimal that holds them.
_DIGITS: dict[type[T.DataType], int] = {
    T.ByteType: 3,
    T.ShortType: 5,
    T.IntegerType: 10,
    T.LongType: 20,
}
_NESTED = (T.StructType, T.ArrayType, T.MapType)
#: Digits of a decimal, at most.
_MOST_DIGITS = 38


def list_parquet_files(url: str) -> list[ParquetFile]:
    """The data files of a folder: all that is not hidden, whatever suffix a name has."""
    filesystem, root = open_store(url)
    listed = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    files = []
    for info in listed:
        path = str(info.path).removeprefix(f"{root}/")
        if info.is_file and not any(map(_is_hidden, path.split("/"))):
            files.append(ParquetFile(path, info.size or 0, info.mtime_ns or 0))
    return sorted(files)


def read_files(spark: SparkSession, url: str, files: Sequence[ParquetFile]) -> DataFrame:
    """The rows of files of a folder, with its partitions as columns of text.

    A column of several types has one that holds the values of all; one that a file lacks is null.

    Raises:
        ImportRefusedError: a file is no Parquet file, or its columns do not go with those of
            another file.
    """
    paths, schemas = {}, {}
    for group, columns in _by_schema(url, files):
        paths[group[0]] = [escape_glob(f"{url}/{file.path}") for file in group]
        struct = spark.read.option("basePath", url).parquet(*paths[group[0]]).schema
        schemas[group[0]] = _with_nulls(struct, columns)
    types = _types_of_all(url, schemas)
    frames = []
    for file, schema in schemas.items():
        # Spark reads a struct with fields that a file lacks, and casts none to it.
        struct = T.StructType(
            [
                T.StructField(field.name, types[field.name.lower()])
                if isinstance(field.dataType, _NESTED)
                else field
                for field in schema
                if not isinstance(field.dataType, T.NullType)
            ]
        )
        rows = spark.read.option("basePath", url).schema(struct).parquet(*paths[file])
        frames.append(
            rows.select(
                *(
                    (F.col(_quote_name(name)) if name in struct.names else F.lit(None))
                    .cast(types[name.lower()])
                    .alias(name)
                    for name in schema.names
                )
            )
        )
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


def _with_nulls(struct: T.StructType, columns: pa.Schema) -> T.StructType:
    """Spark's columns; it takes one that has nulls alone, and so no type, for one of numbers."""
    untyped = {column.name for column in columns if pa.types.is_null(column.type)}
    return T.StructType(
        [
            T.StructField(field.name, T.NullType() if field.name in untyped else field.dataType)
            for field in struct
        ]
    )


def _is_hidden(name: str) -> bool:
    """Whether Spark passes over a file or folder; what begins so may be a partition."""
    return (name.startswith(("_", ".")) and "=" not in name) or name.endswith(FOLDER_MARK)


def _by_schema(
    url: str, files: Sequence[ParquetFile]
) -> Iterable[tuple[list[ParquetFile], pa.Schema]]:
    """Files whose columns have the same names and types, with these."""
    filesystem, root = open_store(url)

    def schema_of(file: ParquetFile) -> pa.Schema | None:
        try:
            with filesystem.open_input_file(f"{root}/{file.path}") as opened:
                return pq.read_schema(opened)
        except (OSError, pa.ArrowException):
            return None

    with ThreadPoolExecutor(_READERS) as pool:
        schemas = dict(zip(files, pool.map(schema_of, files), strict=True))
    if bad := [file for file, schema in schemas.items() if schema is None]:
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
    groups: dict[str, tuple[list[ParquetFile], pa.Schema]] = {}
    for file, schema in schemas.items():
        assert schema is not None
        text = schema.to_string(show_field_metadata=False, show_schema_metadata=False)
        groups.setdefault(text, ([], schema))[0].append(file)
    return groups.values()


def _partition_columns(file: ParquetFile) -> list[str]:
    """The partition columns of a file, by the folders that it lies in."""
    return [name.partition("=")[0] for name in file.path.split("/")[:-1] if "=" in name]


def _types_of_all(url: str, schemas: Mapping[ParquetFile, T.StructType]) -> dict[str, T.DataType]:
    """By column in small letters, a type that holds the values of all files.

    Args:
        url: the folder.
        schemas: by the first file of each schema.

    Raises:
        ImportRefusedError: there is no such type of a column.
    """
    types: dict[str, tuple[ParquetFile, T.DataType]] = {}
    for file, schema in schemas.items():
        for field in schema:
            first_file, kind = types.get(field.name.lower(), (file, field.dataType))
            common = _common_type(kind, field.dataType)
            if common is None:
                raise ImportRefusedError(
                    f"{url}: the column {field.name} is {field.dataType.simpleString()} in "
                    f"{file.path} and {kind.simpleString()} in {first_file.path}, and no type holds "
                    "both. Nothing was written. Write one of the two anew, or import each part of "
                    "the folder by itself."
                )
            types[field.name.lower()] = first_file if common == kind else file, common
    return {name: kind for name, (_, kind) in types.items()}


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


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
    """The same of lists, maps and structs; of structs with the fields of both."""
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
    """The decimal that holds all values of a decimal or of a type of whole numbers."""
    digits = _DIGITS.get(type(kind))
    return T.DecimalType(digits, 0) if digits else cast("T.DecimalType", kind)
