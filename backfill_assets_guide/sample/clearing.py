"""Removal of the sample data, and of nothing else: `make clean`.

It runs as a file with any Python, also if the package is not installed.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The list of the sample's files in the landing, with the SHA-256 by file.
MARK = ".sample.json"
#: The digits of a file's SHA-256 that the commits of a table record.
_DIGITS = 32


def write_file_list(landing: Path) -> None:
    """Write the list of the sample's files, by which `remove_sample` recognizes them."""
    files = {str(path.relative_to(landing)): _file_digest(path) for path in _landing_files(landing)}
    (landing / MARK).write_text(json.dumps(files, indent=1))


def remove_sample(project: Path) -> str:
    """Remove `data` (landing and warehouse) and `.dagster` of a project, if they are the sample.

    It removes all or nothing: every file of the landing must be an unchanged file of the sample,
    every table of the warehouse must be loaded only from such files, and no folder may be a link.
    It returns which folders were not removed, and why; empty if none remains.
    """
    data, home = project / "data", project / ".dagster"
    folders = [folder for folder in (data, home) if os.path.lexists(folder)]
    if not folders:
        return ""
    reason = next(_foreign_items(data, home, os.environ), "")
    if reason:
        names = " and ".join(map(str, folders))
        return f"{names} stay as they are: {reason}. What you do not need, remove yourself."
    for folder in folders:
        shutil.rmtree(folder)
    return ""


def _foreign_items(data: Path, home: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Messages on items that are not of the sample; the caller needs only the first."""
    for name in ("landing", "warehouse"):
        variable = f"BACKFILL_ASSETS_{name.upper()}"
        if settings.get(variable) and Path(settings[variable]).absolute() != data / name:
            yield f"{variable} is {settings[variable]}, and {home} tells of its tables"
    if not os.path.lexists(data):
        yield f"{home} tells of tables that are elsewhere, as there is no {data}"
        return
    yield from (f"{path} is a link" for path in (data, home) if path.is_symlink())
    yield from (f"{path} is a link" for path in _walk_folder(data) if path.is_symlink())
    landing, warehouse = data / "landing", data / "warehouse"
    others = (path for path in data.iterdir() if path not in (landing, warehouse))
    yield from (f"{path} is not of the sample" for path in others)
    try:
        known: Mapping[str, str] = json.loads((landing / MARK).read_text())
    except (OSError, ValueError):
        yield f"{landing} has no list of the sample's files ({MARK})"
        return
    for path in _landing_files(landing):
        if known.get(str(path.relative_to(landing))) != _file_digest(path):
            yield f"{path} is not of the sample, or was changed"
    yield from _foreign_tables(warehouse, {digest[:_DIGITS] for digest in known.values()})


def _foreign_tables(warehouse: Path, digests: set[str]) -> Iterator[str]:
    """Messages on items of the warehouse other than tables loaded from files of these digests."""
    for folder in sorted(warehouse.glob("*")):
        commits = sorted((folder / "_delta_log").glob("*.json"))
        is_whole = commits and not commits[0].stem.strip("0")
        if not is_whole and [*folder.glob("*")] != [folder / "index.html"]:  # the lateness page
            yield f"{folder} is no table of the sample"
        yield from (
            f"{folder} {problem}" for path in commits if (problem := _commit_problem(path, digests))
        )


def _commit_problem(commit: Path, digests: set[str]) -> str:
    """Why a commit cannot be one of the sample; empty if it can."""
    try:
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        records = [json.loads(info["userMetadata"]) for info in infos if "userMetadata" in info]
        manifests = [
            manifest
            for record in records
            for of_part in (record, *record.get("other_parts", ()))
            for manifest in of_part["details"].get("landing", {}).values()
        ]
        files = {
            name: file[-1]
            for manifest in manifests
            for name, file in manifest.get("files", {}).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"has a commit that cannot be read: {commit.name}"
    if not records and any(action.get("add", {}).get("dataChange") for action in actions):
        return f"has rows of another writer: {commit.name}"
    others = sorted(name for name, digest in files.items() if digest not in digests)
    return f"was loaded from {others[0]}, which is not of the sample" if others else ""


def _walk_folder(folder: Path) -> Iterator[Path]:
    return (
        Path(parent, name) for parent, folders, files in os.walk(folder) for name in folders + files
    )


def _landing_files(landing: Path) -> list[Path]:
    return sorted(path for path in _walk_folder(landing) if path.is_file() and path.name != MARK)


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    message = remove_sample(Path(sys.argv[1]))
    if message:
        print(message)
