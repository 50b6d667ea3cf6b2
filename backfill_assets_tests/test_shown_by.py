"""Every section and every item of the field guide names what shows it, and that is there."""

from __future__ import annotations

import json
import re

import pytest

from backfill_assets_guide.labs import running
from backfill_assets_tests.helpers import guide_claims
from backfill_assets_tests.helpers.docs_pages import BLOCK, PAGES, anchor_of, split_sections
from backfill_assets_tests.helpers.glossary import Row
from backfill_assets_tests.helpers.paths import PROJECT

PAGE = "docs/guide/x.md"


def list_problems(last: str, before: str = "A sentence.") -> tuple[str, ...]:
    (claim,) = guide_claims.claims_of_page(
        PAGE, f"# A page\n\n## A section\n\n{before}\n\n{last}\n"
    )
    return claim.wrong


def test_all_that_the_guide_claims_is_shown():
    assert {claim.where: claim.wrong for claim in guide_claims.list_claims() if claim.wrong} == {}


@pytest.mark.parametrize(
    "evidence",
    [
        "lab `append`",
        "`lab append`.",
        "`test_shown_by.py::test_evidence_that_is_there`",
        "`system/test_labs.py::test_a_lab_comes_out_as_its_page_says`",
        "[skew](../skew.md#what-was-measured)",
        "[skew](../skew.md)",
        "[merge, in the text](../performance.md#merge)",
        "`lab torn`, `lab merge`, [skew, measured](../skew.md)",
        "lab `torn`; lab `merge`; [skew](../skew.md#what-was-measured)",
    ],
)
def test_evidence_that_is_there(evidence):
    assert list_problems(f"Shown by: {evidence}") == ()


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        ("lab `appended`", "there is no lab appended"),
        ("`test_nothing.py::test_x`", "there is no module test_nothing.py of tests"),
        ("`test_labs.py::test_x`", "there is no module test_labs.py of tests"),
        ("`labs/test_labs.py::test_x`", "there is no module labs/test_labs.py of tests"),
        ("`test_shown_by.py::test_x`", "test_shown_by.py has no test_x"),
        ("[x](../nothing.md)", "there is no page docs/nothing.md"),
        ("[x](../skew.md#nothing)", "docs/skew.md has no section nothing"),
        ("[x](../glossary.md)", "docs/glossary.md# has no figure, block or table"),
        ("everybody knows", "'everybody knows' is no lab, no test and no link to a page"),
        ("lab `append`; lab `x`", "there is no lab x"),
        ("lab `append`, `lab x`", "there is no lab x"),
    ],
)
def test_evidence_that_is_not_there(evidence, why):
    assert list_problems(f"Shown by: {evidence}") == (why,)


def test_a_page_of_the_guide_is_no_evidence():
    PAGES[PAGE] = "| a table |"
    try:
        (problem,) = list_problems("Shown by: [x](x.md)")
    finally:
        del PAGES[PAGE]
    assert problem == f"{PAGE} is a page of the guide: name what shows it there"


def test_a_section_must_end_with_it():
    (problem,) = list_problems("Another sentence.")
    assert "Shown by" in problem
    assert list_problems("Another sentence.", "Shown by: lab `append`")
    assert list_problems("Shown by: lab `torn`", "Shown by: lab `x`") == ("there is no lab x",)
    assert list_problems("<!-- No claim: instructions. -->") == ()
    assert list_problems("<!-- No claim: links. -->") == ()
    assert list_problems("<!-- No claim: everybody knows. -->")
    page = "# A page\n\nNothing below it.\n"
    assert [claim.wrong == () for claim in guide_claims.claims_of_page(PAGE, page)] == [False]
    shown = f"{page}Shown by: lab `append`.\n"
    assert [claim.evidence for claim in guide_claims.claims_of_page(PAGE, shown)] == [
        ("lab `append`",)
    ]


def test_a_section_has_its_subsections_and_its_blocks():
    page = "# A\n\n## B\n\n```bash\n## no heading\n```\n\n### C\n\nText.\n\n## D\n\nEnd.\n"
    headings = [(section.level, section.title) for section in split_sections(page)]
    assert headings == [(1, "A"), (2, "B"), (3, "C"), (2, "D")]
    b = next(section.body for section in split_sections(page) if section.title == "B")
    assert "## no heading" in b
    assert b.endswith("Text.\n\n")


#: What a page takes of the output of a lab: its name, and from which line to which.
SNIPPET = re.compile(r'^--8<-- "([\w-]+)\.txt(?::(\d+):(\d+))?"$', re.MULTILINE)


GUIDE = [text for page, text in PAGES.items() if page.startswith(guide_claims.GUIDE)]


def test_what_is_shown_of_a_lab_is_whole_paragraphs_and_the_lab_is_named():
    assert GUIDE
    for section in (section for text in GUIDE for section in split_sections(text)):
        for name, first, last in SNIPPET.findall(section.body):
            lines = ["", *running.read_page(name).splitlines(), ""]
            if first:
                begin, end = int(first), int(last)
                edges = [lines[line] for line in (begin - 1, begin, end, end + 1)]
                assert [line == "" for line in edges] == [True, False, False, True], (name, edges)
            named = f"`{name}`: " in f"{section.title}\n{section.body}"
            assert section.level == 1 or named or f"lab `{name}`" in section.body


#: A link to a section of another page, whose words have a figure.
FIGURES = re.compile(r"\[([^\]]*\d[^\]]*)\]\(\.\./([\w-]+\.md)#([\w-]+)\)")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def test_a_figure_in_a_link_is_one_of_the_section_that_it_leads_to():
    for words, path, anchor in (link for text in GUIDE for link in FIGURES.findall(text)):
        target = next(
            section
            for section in split_sections(PAGES[f"docs/{path}"])
            if anchor_of(section.title) == anchor
        )
        measured = NUMBER.findall(f"{target.title} {target.body}")
        assert [figure for figure in NUMBER.findall(words) if figure not in measured] == [], words


def test_the_costs_that_a_lead_reads_are_such_links():
    assert len(FIGURES.findall(PAGES["docs/guide/lead.md"])) > 8


#: So many words has a paragraph of an answer, at most.
LONGEST_ANSWER = 60


def test_answers_come_in_short_paragraphs():
    paragraphs = re.split(r"\n\s*\n|\n(?=- )", BLOCK.sub("", PAGES["docs/guide/lead.md"]))
    answers = [text for text in paragraphs if not text.startswith(("#", "Shown by:", "|"))]
    assert len(answers) > 15
    assert [text for text in answers if len(text.split()) > LONGEST_ANSWER] == []


def test_reasons_of_the_quiz_are_short():
    questions = json.loads((PROJECT / "docs/guide/quiz.json").read_text())
    reasons = [answer["reason"] for question in questions for answer in question["answers"]]
    assert [text for text in reasons if len(text.split()) > LONGEST_ANSWER] == []


def test_the_path_of_a_newcomer_takes_two_hours_and_has_every_lab_once():
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", PAGES["docs/guide/index.md"], re.MULTILINE)
    assert sum(int(minutes) for minutes, _ in rows) == 120
    labs = [lab for _, do in rows for lab in re.findall(r"`backfill-assets lab ([\w-]+)`", do)]
    assert labs == [name for name in running.LABS if name in labs]
    assert len(labs) >= 8


def list_item_problems(data: object) -> dict[str, tuple[str, ...]]:
    return {
        claim.where: claim.wrong for claim in guide_claims.claims_of_data("docs/guide/x.json", data)
    }


def test_items_of_a_data_file():
    good = {"question": "x", "answers": [{"text": "y"}], "shown_by": "lab append"}
    assert list_item_problems([good, good]) == {
        "docs/guide/x.json: 1": (),
        "docs/guide/x.json: 2": (),
    }
    grouped = {"lists": [{"title": "Before", "items": [good, good]}]}
    assert list(list_item_problems(grouped)) == [
        "docs/guide/x.json: lists 1 items 1",
        "docs/guide/x.json: lists 1 items 2",
    ]
    bare = {key: value for key, value in good.items() if key != "shown_by"}
    assert list_item_problems([good, bare])["docs/guide/x.json: 2 answers 1"] == (
        "it has no field `shown_by`",
    )
    assert list_item_problems([{"text": "x"}])["docs/guide/x.json: 1"] == (
        "it has no field `shown_by`",
    )
    assert list_item_problems(["x"])["docs/guide/x.json: 1"]
    assert list_item_problems([{**good, "shown_by": "lab x"}])["docs/guide/x.json: 1"]


def test_the_list_is_printed(capsys, monkeypatch, tmp_path):
    assert guide_claims.main() == 0
    monkeypatch.setattr(guide_claims, "PROJECT", tmp_path)
    monkeypatch.setattr(guide_claims.glossary, "ROWS", [Row(("word",), "a meaning", "`lab x`")])
    (tmp_path / "docs/guide").mkdir(parents=True)
    (tmp_path / "docs/guide/x.json").write_text(json.dumps([{"text": "x"}]))
    monkeypatch.setattr(guide_claims, "PAGES", {PAGE: "# A\n\n## B\n\nShown by: lab `append`.\n"})
    capsys.readouterr()
    assert guide_claims.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{PAGE}: B",
        "    lab `append`",
        "docs/guide/x.json: 1",
        "    NOT SHOWN: it has no field `shown_by`",
        "docs/glossary.md: word",
        "    `lab x`",
        "    NOT SHOWN: there is no lab x",
        "3 sections, items and words, 2 not shown",
    ]
