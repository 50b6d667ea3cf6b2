"""Size limits of landing files, checked before Spark opens a file.

Spark holds whole lines in memory, several times. A line of a gigabyte, which fits into a megabyte
of gzip, would kill the engine and all runs on it.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from backfill_assets.landing.listing import LandingError, ListedFile
from backfill_assets.settings import PREFIX, Settings

#: Bytes read at a time.
_PIECE = 1 << 20
#: Bytes read first at the far end of the allowed line length; they nearly always have a line end.
_FIRST_READ_BYTES = 1 << 12
#: Last bytes of a Parquet file: the length of the footer, and the magic number.
_FOOTER_TAIL_BYTES = 8
_MOST_FOOTER = 64 << 20
_MOST_COLUMNS = 20_000
#: Maximum expanded size of a row group, in lines of `max_line` bytes: Spark holds it in memory.
_LINES_OF_A_GROUP = 1024
#: Maximum expanded size of a file that Spark can only read whole, in the same lines.
_LINES_OF_A_WHOLE_FILE = 32


@dataclass(frozen=True)
class SizeLimits:
    """Maximum sizes of a landing file, in bytes.

    Attributes:
        max_line: of a line, or of a row of a Parquet file.
        max_expanded: of a compressed file after expansion.
        max_control: of a control file.
    """

    max_line: int
    max_expanded: int
    max_control: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The limits in the settings."""
        return cls(settings.max_line, settings.max_expanded, settings.max_control)

    @classmethod
    def default_limits(cls) -> "SizeLimits":
        """The limits of a deployment that sets none."""
        return cls.from_settings(Settings.model_construct())

    def check_text(self, filesystem: pafs.FileSystem, entry: ListedFile) -> int:
        """The expanded size of a text file; raise if it has too long a line, or it is too much.

        A plain file not longer than one line is not opened; of a larger one, a small part is read.
        A compressed file is expanded in constant memory, which also finds a broken one here;
        otherwise Spark would read all files again for each broken one.

        Raises:
            LandingError: a line is too long, it expands to too much, or it is not a whole gzip
                file.
            OSError: it cannot be read.
        """
        if entry.path.endswith(".gz"):
            with filesystem.open_input_stream(entry.path, compression=None) as stream:
                return self._check_expanded(_decompress_pieces(stream, min(_PIECE, self.max_line)))
        if entry.size > self.max_line:
            with filesystem.open_input_file(entry.path) as file:
                self._check_plain(file)
        return entry.size

    def whole_file_problem(self, size: int, why_whole: str) -> str:
        """Why a file of this expanded size is not held in memory whole; empty if it may be.

        `why_whole` is why it would have to be, up to the size.
        """
        if size <= (max_bytes := self.max_line * _LINES_OF_A_WHOLE_FILE):
            return ""
        return (
            f"LandingError: {why_whole} more than {max_bytes:,} "
            f"bytes ({_LINES_OF_A_WHOLE_FILE} times {PREFIX}MAX_LINE): write smaller files"
        )

    def _check_plain(self, file: pa.NativeFile) -> None:
        """Search a line end within the maximum length of each line, backwards from its far end."""
        begin, size = 0, file.size()
        while size - begin > self.max_line:
            end, length = begin + self.max_line + 1, _FIRST_READ_BYTES
            while True:
                start = max(begin, end - length)
                # Only the newly read bytes can have a line end: the ones after them had none.
                line_end = _last_line_end(file.read_at(end - start, start))
                if line_end >= 0:
                    begin = start + line_end + 1
                    break
                if start == begin:
                    raise self._long_line_error()
                length *= 4

    def _check_expanded(self, pieces: Iterator[bytes]) -> int:
        """The total size of decompressed pieces; raise if it is too large, or a line too long."""
        line = total = 0
        for piece in pieces:
            total += len(piece)
            if total > self.max_expanded:
                raise LandingError(
                    f"it expands to more than {self.max_expanded:,} bytes ({PREFIX}MAX_EXPANDED)"
                )
            last = _last_line_end(piece)
            line += len(piece) if last < 0 else _first_line_end(piece)
            if line > self.max_line:
                raise self._long_line_error()
            if last >= 0:
                line = len(piece) - last - 1
        return total

    def _long_line_error(self) -> LandingError:
        return LandingError(f"a line is longer than {self.max_line:,} bytes ({PREFIX}MAX_LINE)")

    def read_control_file(self, filesystem: pafs.FileSystem, entry: ListedFile) -> bytes:
        """The content of a control file.

        Raises:
            LandingError: it is too large.
            OSError: it cannot be read.
        """
        with filesystem.open_input_stream(entry.path) as stream:
            # It may have grown since it was listed.
            text: bytes = stream.read(self.max_control + 1)
        if len(text) > self.max_control:
            raise LandingError(
                f"it is larger than {self.max_control:,} bytes ({PREFIX}MAX_CONTROL)"
            )
        return text

    def read_footer(self, filesystem: pafs.FileSystem, entry: ListedFile) -> pq.FileMetaData:
        """The footer of a Parquet file, which has the expanded size.

        Raises:
            LandingError: the expanded size, a row, or the footer is too large.
            OSError: it cannot be read.
            pyarrow.ArrowException: it is not a Parquet file.
        """
        with filesystem.open_input_file(entry.path) as file:
            if (size := file.size()) > _MOST_FOOTER:
                length = int.from_bytes(
                    file.read_at(_FOOTER_TAIL_BYTES, size - _FOOTER_TAIL_BYTES)[:4], "little"
                )
                if length > _MOST_FOOTER:
                    raise LandingError(
                        f"its footer has {length:,} bytes, more than {_MOST_FOOTER:,}"
                    )
            footer = pq.read_metadata(file)
        if footer.num_columns > _MOST_COLUMNS:
            raise LandingError(f"it has {footer.num_columns} columns, more than {_MOST_COLUMNS}")
        total = 0
        # Not by column: for a broken file, Arrow ends the process then.
        for group in map(footer.row_group, range(footer.num_row_groups)):
            size = group.total_byte_size
            total += size
            if size > self.max_line * max(group.num_rows, 1):
                raise LandingError(
                    f"its rows have more than {self.max_line:,} bytes on average ({PREFIX}MAX_LINE)"
                )
            if size > (max_bytes := self.max_line * _LINES_OF_A_GROUP):
                raise LandingError(
                    f"a row group expands to more than {max_bytes:,} bytes "
                    f"({_LINES_OF_A_GROUP:,} times {PREFIX}MAX_LINE): write smaller ones"
                )
        if total > self.max_expanded:
            raise LandingError(
                f"it expands to {total:,} bytes, more than {self.max_expanded:,} "
                f"({PREFIX}MAX_EXPANDED)"
            )
        return footer


def _decompress_pieces(stream: pa.NativeFile, max_bytes: int) -> Iterator[bytes]:
    """The content of a gzip file with all its members, in pieces of at most `max_bytes`.

    Raises:
        LandingError: it is not a whole gzip file.
    """
    member, in_member = zlib.decompressobj(wbits=31), False
    try:
        while data := stream.read(_PIECE):
            while data:
                in_member = True
                yield member.decompress(data, max_bytes)
                data = member.unconsumed_tail
                if member.eof:
                    data, in_member = member.unused_data, False
                    member = zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise LandingError(f"broken gzip: {error}") from None
    if in_member:
        raise LandingError("broken gzip: it ends in the middle")


def _last_line_end(data: bytes) -> int:
    """The position of the last line end, by the rules of Spark's reader; -1 if there is none."""
    return max(data.rfind(b"\n"), data.rfind(b"\r"))


def _first_line_end(data: bytes) -> int:
    ends = (data.find(b"\n"), data.find(b"\r"))
    return min(end for end in ends if end >= 0)
