"""What a contributor relies on: the lock file and the hooks."""

from __future__ import annotations

import re

import yaml

from backfill_assets_tests.places import PROJECT

LOCK = (PROJECT / "requirements.lock").read_text()
#: Versions by name. pip takes no extras in a file of constraints.
LOCKED = dict(re.findall(r"^([\w.-]+)==([\w.]+)", LOCK, re.MULTILINE))


def test_the_lock_file_has_every_pin():
    text = (PROJECT / "pyproject.toml").read_text()
    pins = dict(re.findall(r'^    "([\w.-]+)(?:\[\w+\])?==([\w.]+)",$', text, re.MULTILINE))
    assert {"click", "dagster", "pytest", "mkdocs", "pandera"} <= pins.keys()
    assert {name: LOCKED.get(name) for name in pins} == pins


def test_the_lock_file_has_names_and_versions_only():
    """An address would be that of somebody's mirror."""
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    assert len(lines) == len(LOCKED)
    assert "://" not in LOCK


def test_the_hooks_are_the_checks():
    makefile = (PROJECT / "Makefile").read_text()
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    checks = [line.removeprefix("\t@$(BIN)/") for line in recipe.splitlines()]
    (local,) = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]] == checks
    assert all(hook["language"] == "system" for hook in local["hooks"])
