"""What a contributor relies on: the lock files and the hooks."""

from __future__ import annotations

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from backfill_assets.spark import known_jars
from backfill_assets_tests.helpers.paths import PROJECT

LOCKS = {path.name: path.read_text() for path in sorted(PROJECT.glob("requirements*.lock"))}
#: By file, what it has of each name: the version and the digests of all its archives.
LOCKED = {
    file: {
        name: (version, frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)))
        for name, version, rest in re.findall(
            r"^([\w.-]+)==([\w.]+)((?:[^\n]*\\\n)*[^\n]*)$", text, re.MULTILINE
        )
    }
    for file, text in LOCKS.items()
}
MAKEFILE = (PROJECT / "Makefile").read_text()
PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT_FILE["project"]["dependencies"]
EXTRAS = PROJECT_FILE["project"]["optional-dependencies"]


def read_ranges(requirements: list[str]) -> dict[str, SpecifierSet]:
    """The specifiers by name; of this package's own extras, those of what is in them."""
    ranges = {}
    for requirement in map(Requirement, requirements):
        if requirement.name == "backfill-assets":
            for extra in requirement.extras:
                ranges |= read_ranges(EXTRAS[extra])
        else:
            ranges[requirement.name] = requirement.specifier
    return ranges


def test_the_lock_files_have_a_version_of_every_range():
    groups = PROJECT_FILE["dependency-groups"]
    assert groups["build"] == PROJECT_FILE["build-system"]["requires"]
    needed = read_ranges([*DEPENDENCIES, *EXTRAS["serve"], *EXTRAS["lookups"]])
    required = {
        "requirements-build.lock": read_ranges(groups["build"]),
        "requirements.lock": needed,
        "requirements-dev.lock": needed | read_ranges([*EXTRAS["dev"], *groups["lock"]]),
        "requirements-docs.lock": needed | read_ranges(EXTRAS["docs"]),
        "requirements-dbt.lock": needed | read_ranges(EXTRAS["dbt"]),
    }
    assert required.keys() == LOCKED.keys()
    for file, ranges in required.items():
        locked = {name: LOCKED[file].get(name, ("0",))[0] for name in ranges}
        assert [x for x, v in locked.items() if not ranges[x].contains(v)] == [], file


def test_a_library_pins_no_version():
    """Of what a project installs, lowest and highest are named, and none is the only one."""
    for name in ("serve", "lookups", "postgres", "openlineage"):
        for package, specifiers in read_ranges([*DEPENDENCIES, *EXTRAS[name]]).items():
            operators = {specifier.operator for specifier in specifiers}
            assert operators == ({">="} if package == "tzdata" else {">=", "<"}), package


def test_the_jars_of_every_delta_are_known():
    """A version that comes into the range needs the SHA-256 of its jars."""
    names = (
        re.fullmatch(r"delta-spark_([\d.]+)_2\.13-([\d.]+)\.jar", x) for x in known_jars.SHA256
    )
    known = [match.groups() for match in names if match]
    ranges = read_ranges(DEPENDENCIES)
    assert known == [("4.2", "4.4.0")]
    assert all(ranges["delta-spark"].contains(delta) for _, delta in known)
    assert not ranges["delta-spark"].contains("4.4.1") and not ranges["pyspark"].contains("4.1.4")


def test_what_is_installed_is_known_by_its_digest():
    for file, text in LOCKS.items():
        assert all(digests for _, digests in LOCKED[file].values()), file
        # A name may have a line for each Python version.
        assert LOCKED[file].keys() == {*re.findall(r"^([^\s#]+)==", text, re.MULTILINE)}
    dev, docs, dbt = (LOCKED[f"requirements-{name}.lock"] for name in ("dev", "docs", "dbt"))
    assert LOCKED["requirements.lock"].items() <= dev.items() & docs.items() & dbt.items()
    assert {dev[name] == docs[name] for name in dev.keys() & docs.keys()} == {True}


def test_pip_is_held_to_the_lock_files():
    installs = re.findall(r"\$\((?:PIP|DBT)_INSTALL\)(.*)", MAKEFILE)
    (project_install,) = (line for line in installs if line.endswith("-e ."))
    assert "--no-deps --no-build-isolation" in project_install  # nothing comes with it
    assert "LOCKED := --require-hashes --no-deps --no-build-isolation -r\n" in MAKEFILE
    assert all("$(LOCKED) requirements" in line for line in installs if line != project_install)
    assert len(installs) == len(LOCKS) + 1


def test_the_lock_files_have_no_addresses():
    """One would be that of somebody's mirror."""
    assert not any("://" in text for text in LOCKS.values())


def test_the_hooks_are_the_checks():
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    checks = [line.removeprefix("\t@$(BIN)/") for line in recipe.splitlines()]
    (local,) = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]] == checks
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_each_threat_names_a_test_that_there_is():
    page = (PROJECT / "docs" / "security.md").read_text()
    section = page.partition("\n## What is protected against\n")[2].partition("\n## ")[0]
    threats = [line for line in section.splitlines() if line.startswith("- *")]
    assert len(threats) > 20
    for line in threats:
        named = re.findall(r"`((?:system/)?test_\w+\.py)::(test_\w+)`", line)
        assert named, line
        for file, test in named:
            text = (PROJECT / "backfill_assets_tests" / file).read_text()
            assert f"def {test}(" in text, f"{file}::{test}"
