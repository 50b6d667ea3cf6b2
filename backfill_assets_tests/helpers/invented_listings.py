"""Landings made by hand: listings of one, small folders, and folders that cannot be listed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backfill_assets.landing.listing import DayFolder, ListedFile, Listing, folder_name
from backfill_assets_tests.helpers.pipeline import day


@dataclass(frozen=True)
class InventedListing(Listing):
    """A listing of files that exist only here; it notes which of them were opened."""

    contents: Mapping[str, str] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)

    def content_digests(self, entries: Iterable[ListedFile]) -> dict[ListedFile, str]:
        digests_by_entry = {
            entry: f"digest of {self.contents[entry.source_file]}" for entry in entries
        }
        self.opened.update(entry.name for entry in digests_by_entry)
        return digests_by_entry


def make_landing(*folders: str | None, at: int = 1) -> InventedListing:
    """What the folders of days 1, 2, ... hold.

    Args:
        folders: each as `name=content` of its files; none if there is no folder.
        at: when the files were changed; 0 where the store does not say.
    """
    folders_by_day, contents = {}, {}
    for n, text in enumerate(folders, start=1):
        if text is None:
            continue
        files = {}
        for name, content in (pair.split("=") for pair in text.split()):
            source_file = file_path(n, name)
            files[source_file] = ListedFile(source_file, f"/orders/{source_file}", len(content), at)
            contents[source_file] = content
        folders_by_day[day(n)] = DayFolder(files)
    return InventedListing("/landing", folders_by_day, contents=contents)


def write_landing(root: Path, *folders: str | None) -> Path:
    """Folders of days 1, 2, ... of orders, each as `name=content` of its files; none without."""
    for n, text in enumerate(folders, start=1):
        if text is not None:
            folder = root / "orders" / folder_name(day(n))
            folder.mkdir(parents=True)
            for name, content in (pair.split("=") for pair in text.split()):
                (folder / name).write_text(content)
    return root


def file_path(n: int, name: str = "part-0.jsonl") -> str:
    return f"arrival_date={day(n)}/{name}"


def close_folder(patch: pytest.MonkeyPatch, path: Path) -> None:
    """As if the folder had mode 000, which does not keep root out."""
    scandir = os.scandir

    def refuse(folder):
        if str(folder) == str(path):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    patch.setattr(os, "scandir", refuse)
