"""The labs come out as their pages say, and the command tells when one does not."""

from __future__ import annotations

from decimal import Decimal

import pytest

from backfill_assets.cli import main
from backfill_assets_guide.labs import running
from backfill_assets_tests.helpers.docs_pages import PAGES
from backfill_assets_tests.helpers.lab_pages import read_figures

#: Of a few rows: it writes as careless jobs do, and as the package does.
CHEAP = "torn"


@pytest.mark.parametrize(
    "name",
    [n if n == CHEAP else pytest.param(n, marks=pytest.mark.slow) for n in running.LABS],
)
def test_a_lab_comes_out_as_its_page_says(engine, spark, name):
    assert running.page_diff(name, running.run_lab(name, engine)) == ""
    assert f'--8<-- "{name}.txt"' in PAGES["docs/guide/simulators.md"]
    assert all(looks for _, looks in read_figures(name)), "after each step somebody looks"


def test_the_figures_of_a_page_are_read():
    first, *_ = read_figures("append")
    totals = {"days": 1096, "rows": 3288, "revenue": Decimal("32880.00")}
    assert first == ("A job appends the three years.", [("reader", totals)])
    assert ("reader", {"text": "there is no table"}) in read_figures("crash")[0][1]
    assert ("reader", {"customer": "c", "email": "bounced"}) in read_figures("leak")[0][1]


def test_what_is_otherwise_is_told(monkeypatch, capsys):
    monkeypatch.setattr(
        running, "run_lab", lambda name, _: running.read_page(name).replace("rows 3", "rows 4")
    )
    monkeypatch.setattr(running, "LABS", {name: running.LABS[name] for name in ("torn", "leak")})
    assert main(["lab", "torn"]) == 0
    monkeypatch.setattr(running, "LABS", {name: running.LABS[name] for name in ("torn", "leak")})
    monkeypatch.setattr(running, "run_lab", lambda name, _: running.read_page(name))
    assert main(["lab", "all"]) == 0
    assert capsys.readouterr().out.count("# ") == 2
    monkeypatch.setattr(running, "run_lab", lambda name, _: running.read_page(name) + "more\n")
    assert main(["lab", "all"]) == 1
    output = capsys.readouterr()
    assert "torn does not come out as its page says:" in output.err
    assert "+more" in output.err
    assert "leak does not come out" in output.err
    assert main(["lab", "nothing"]) == 3
    assert "no lab is named nothing; there are torn, leak" in capsys.readouterr().err
    assert main(["lab", "list"]) == 0
    assert "A day is replaced, and the job dies half way." in capsys.readouterr().out
