"""For the tests' deployments, by PYTHONPATH: Dagster's daemons look every 2 seconds, not every 30.

How often the backfill daemon looks is a constant of Dagster's, for which there is no setting.
"""

import sys

if "dagster._daemon" in sys.orig_argv:
    from dagster._daemon import controller

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 2
