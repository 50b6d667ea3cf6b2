"""Size limits of landing files, checked before Spark opens a file.

Spark holds a line in memory as a whole, several times over. One line of a gigabyte, which fits into
a megabyte of gzip, would end the engine, and the runs beside it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from backfill_assets.landing.listing import LandingError, ListedFile
from backfill_assets.settings import PREFIX, Settings

#: Bytes that are looked at together.
_PIECE = 1 << 20
#: So much of the end of a line's reach is looked at first: it holds a line end, nearly always.
_TAIL = 1 << 12
#: The last bytes of a Parquet file: the length of its footer, and a mark.
_MARK = 8
_MOST_FOOTER = 64 << 20
_MOST_COLUMNS = 20_000
#: Spark holds a row group in memory, compressed: it expands to at most as much as so many lines.
_LINES_OF_A_GROUP = 1024


@dataclass(frozen=True)
class SizeLimits:
    """What a landing file may be at most, in bytes.

    Attributes:
        max_line: a line, or a row of a Parquet file.
        max_expanded: what a compressed file expands to.
        max_control: a control file.
    """

    max_line: int
    max_expanded: int
    max_control: int

    @classmethod
    def from_settings(cls, settings: Settings) -> SizeLimits:
        """The caps that the settings ask for."""
        return cls(settings.max_line, settings.max_expanded, settings.max_control)

    @classmethod
    def default_limits(cls) -> SizeLimits:
        """The caps of a deployment that sets none."""
        return cls.from_settings(Settings.model_construct())

    def check_text(self, filesystem: pafs.FileSystem, entry: ListedFile) -> None:
        """See that no line of a text file is too long, and that it does not expand to too much.

        A plain file that is no longer than a line is not opened; of a larger one, a small part is
        read. A compressed file is expanded in constant memory: a broken one is told here, as Spark
        would read all files once more for each that it fails on.

        Raises:
            LandingError: it has too long a line, expands to too much, or is no whole gzip.
            OSError: it cannot be read.
        """
        if entry.path.endswith(".gz"):
            with filesystem.open_input_stream(entry.path, compression=None) as stream:
                self._check_expanded(_decompress_pieces(stream, min(_PIECE, self.max_line)))
        elif entry.size > self.max_line:
            with filesystem.open_input_file(entry.path) as file:
                self._check_plain(file)

    def _check_plain(self, file: pafs.NativeFile) -> None:
        """Look for a line end within the reach of each line, from its far end backwards."""
        begin, size = 0, file.size()
        while size - begin > self.max_line:
            end, length = begin + self.max_line + 1, _TAIL
            while True:
                start = max(begin, end - length)
                # A line end at the far end is one of the last read; what is before was read before.
                line_end = _last_line_end(file.read_at(end - start, start))
                if line_end >= 0:
                    begin = start + line_end + 1
                    break
                if start == begin:
                    raise self._too_long()
                length *= 4

    def _check_expanded(self, pieces: Iterator[bytes]) -> None:
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
                raise self._too_long()
            if last >= 0:
                line = len(piece) - last - 1

    def _too_long(self) -> LandingError:
        return LandingError(f"a line is longer than {self.max_line:,} bytes ({PREFIX}MAX_LINE)")

    def read_control_file(self, filesystem: pafs.FileSystem, entry: ListedFile) -> bytes:
        """What a control file holds.

        Raises:
            LandingError: it is too large.
            OSError: it cannot be read.
        """
        with filesystem.open_input_stream(entry.path) as stream:
            # However large it was when it was listed.
            text: bytes = stream.read(self.max_control + 1)
        if len(text) > self.max_control:
            raise LandingError(
                f"it is larger than {self.max_control:,} bytes ({PREFIX}MAX_CONTROL)"
            )
        return text

    def read_footer(self, filesystem: pafs.FileSystem, entry: ListedFile) -> pq.FileMetaData:
        """The footer of a Parquet file, which tells how much the file expands to.

        Raises:
            LandingError: it expands to too much, has too large rows, or too large a footer.
            OSError: it cannot be read.
            pyarrow.ArrowException: it is no Parquet file.
        """
        with filesystem.open_input_file(entry.path) as file:
            if (size := file.size()) > _MOST_FOOTER:
                length = int.from_bytes(file.read_at(_MARK, size - _MARK)[:4], "little")
                if length > _MOST_FOOTER:
                    raise LandingError(
                        f"its footer has {length:,} bytes, more than {_MOST_FOOTER:,}"
                    )
            footer = pq.read_metadata(file)
        if footer.num_columns > _MOST_COLUMNS:
            raise LandingError(f"it has {footer.num_columns} columns, more than {_MOST_COLUMNS}")
        total = 0
        # Not by column: of a broken one, Arrow ends the process when it is asked.
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


def _decompress_pieces(stream: pafs.NativeFile, max_bytes: int) -> Iterator[bytes]:
    """What a gzip file holds, its members one after another, in pieces of so many bytes at most.

    Raises:
        LandingError: it is no whole gzip.
    """
    member, in_member = zlib.decompressobj(wbits=31), False
    try:
        while data := stream.read(_PIECE):
            while data:
                in_member = True
                yield member.decompress(data, max_bytes)
                data = member.unconsumed_tail
                if member.eof:
                    data, member, in_member = (
                        member.unused_data,
                        zlib.decompressobj(wbits=31),
                        False,
                    )
    except zlib.error as error:
        raise LandingError(f"broken gzip: {error}") from None
    if in_member:
        raise LandingError("broken gzip: it ends in the middle")


def _last_line_end(data: bytes) -> int:
    """Where the last line of a text ends, as Spark's reader tells lines; -1 if none does."""
    return max(data.rfind(b"\n"), data.rfind(b"\r"))


def _first_line_end(data: bytes) -> int:
    ends = (data.find(b"\n"), data.find(b"\r"))
    return min(end for end in ends if end >= 0)
