"""Sample visits: the first three days of 2024, some lines a day late."""

import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random

FIRST = datetime(2024, 1, 1, tzinfo=timezone.utc)


def write_visits(landing: Path, days: int = 3, lines_a_day: int = 100) -> None:
    """Write the sample, the same lines each time."""
    random = Random(1)
    for day in range(days):
        arrival = FIRST + timedelta(days=day)
        lines = []
        for n in range(lines_a_day):
            began = max(FIRST, arrival - timedelta(days=random.random() < 0.1))
            began += timedelta(seconds=random.randrange(80_000))
            visit = {
                "visit_id": f"{day}-{n}",
                "user_id": f"u-{random.randrange(30)}",
                "began_at": began.isoformat(),
                "page": random.choice(["/", "/prices", "/docs"]),
                "clicks": random.randrange(1, 9),
                "logged_in": True,
                "sent_at": (arrival + timedelta(hours=23)).isoformat(),
            }
            lines.append(json.dumps(visit))
        folder = landing / "visits" / f"arrival_date={arrival:%F}"
        folder.mkdir(parents=True)
        (folder / "part-0.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_visits(Path(sys.argv[1]))
