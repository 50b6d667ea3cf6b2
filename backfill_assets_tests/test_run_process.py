"""The process of a command's runs: when the next run has the same one, and when another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from backfill_assets.calendar.partitions import Window
from backfill_assets.cli.output import Output
from backfill_assets.cli.runs import RunProcess
from backfill_assets.spark import session as session_module
from backfill_assets.spark.session import Engine, engines_answer
from backfill_assets_tests.helpers.pipeline import day

DAYS = Window(day(1), day(1))
#: It answers each line by the next of its words; `succeeds` is the answer of a good run.
STAND_IN = """
import sys
mark, *words = sys.argv[1:]
for word, line in zip(words, sys.stdin):
    print(f"{word} was asked for {line.strip()[:1] or 'an answer'}")
    if word == "succeeds":
        print("x - dagster - DEBUG - job - id - 1 - RUN_SUCCESS - Finished execution of run.")
    if word == "ends":
        sys.exit(1)
    print(mark, flush=True)
"""


class StandIns(RunProcess):
    """Processes that answer in turn as is said of each."""

    def __init__(self, *words: Sequence[str]) -> None:
        super().__init__(Output(), "/home")
        self.words, self.started = list(words), 0

    def _start_process(self) -> subprocess.Popen[str]:
        words = self.words[self.started]
        self.started += 1
        return subprocess.Popen(
            [sys.executable, "-c", STAND_IN, self._mark, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def run_days(processes: RunProcess) -> bool:
    return processes.run_days(["raw_orders"], DAYS, {})


def test_runs_have_one_process_as_long_as_its_engine_answers(capsys):
    first = ["succeeds", "is ready", "succeeds", "ends"]
    with StandIns(first, ["succeeds"]) as processes:
        assert [run_days(processes) for _ in range(3)] == [True] * 3
        assert processes.started == 2
    assert "was asked" not in capsys.readouterr().out, "an engine that is lost is no finding"


def test_a_run_that_fails_is_not_tried_again(capsys):
    with StandIns(["ends"], ["succeeds"]) as processes:
        assert [run_days(processes) for _ in range(2)] == [False, True]
        assert processes.started == 2
    assert "ends was asked for [" in capsys.readouterr().out


def test_a_process_that_has_died_meanwhile_fails_no_run():
    with StandIns(["succeeds"], ["succeeds"]) as processes:
        assert run_days(processes)
        assert processes._process is not None
        processes._process.wait()  # its words are at an end
        assert run_days(processes)
        assert processes.started == 2


@pytest.mark.parametrize("error", [None, ValueError, BrokenPipeError])
def test_the_process_has_ended_when_the_command_goes_on(error):
    processes = StandIns(["succeeds"])
    try:
        with processes:
            run_days(processes)
            if error:
                raise error
    except (ValueError, BrokenPipeError):
        pass
    assert processes._process is not None
    assert processes._process.returncode is not None


def test_an_engine_whose_session_is_lost_does_not_answer(engine: Engine, spark, monkeypatch):
    monkeypatch.setattr(session_module, "_started_engines", [])
    assert engines_answer(), "there is none"
    monkeypatch.setattr(session_module, "_started_engines", [engine])
    assert engines_answer()

    class Lost:
        def range(self, _: int) -> object:
            raise ConnectionError("the server was restarted")

    monkeypatch.setattr(Engine, "started_sessions", [Lost()])
    assert not engines_answer()
