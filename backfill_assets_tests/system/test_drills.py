"""The incident drills in short form, by the commands that a person would give."""

import os

import pytest

from backfill_assets.calendar.partitions import Window
from backfill_assets_tests.drills import drills

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="starts an engine of its own"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [["doubled"], ["targeted", "refill"]],
    ids="-".join,
)
def test_the_drills(tmp_path, capsys, names):
    drills.run_drills(names, tmp_path, Window.parse("2025-01-09...2025-01-16"), short=True)
    output = capsys.readouterr().out
    ends = [
        line.split()[1] for line in output.splitlines() if " REPAIRED" in line or "TAKEN" in line
    ]
    assert ends == [{"refill": "TAKEN"}.get(name, "REPAIRED:") for name in names]
    assert ("DETECTED after" in output) is ("doubled" in names)
