"""For the tests' deployments, by PYTHONPATH: what we have no setting for.

The sensors take the text of the file named by BACKFILL_TEST_CLOCK for the time, look every two
seconds, and files are loaded as soon as they have landed.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from datetime import datetime
from pathlib import Path


class _Clocked(importlib.abc.MetaPathFinder):
    """Gives the automation a clock that a test moves."""

    def find_spec(self, name, path=None, target=None):
        if name != "backfill_assets.monitoring.automation":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            build = module.build_automation

            def clocked(settings, _clock=None):
                automation = build(settings, _now)
                for sensor in automation.sensors:
                    sensor._min_interval = 2
                    if sensor.name == "landed_files":
                        sensor._default_status = module.dg.DefaultSensorStatus.RUNNING
                return automation

            module.build_automation = clocked

        spec.loader.exec_module = exec_module
        return spec


def _now() -> datetime:
    return datetime.fromisoformat(Path(os.environ["BACKFILL_TEST_CLOCK"]).read_text())


sys.meta_path.insert(0, _Clocked())
