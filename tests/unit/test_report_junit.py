"""JUnit's XML of a summary: well-formed whatever a log says."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from lockstep.report.junit import junit
from lockstep.report.page import markdown


def row(**changes: Any) -> dict[str, Any]:
    good = {
        "name": "control", "fault": None, "remedy": None, "expected": "in step", "as_expected": True,
        "wrong": "",
        "ledgers": "/l", "verdict": "in step", "sentence": "All agree.", "group": "",
        "waiting": [], "absent": [],
        "seconds_to_verdict": 2.5, "seconds": 100.04,
    }  # fmt: skip
    return good | changes


def test_a_wrong_verdict_is_a_failure_and_none_an_error() -> None:
    lost = row(name="lost", as_expected=False, wrong="a ledger cannot be read")
    del lost["verdict"]
    suite = ElementTree.fromstring(
        junit([row(), row(as_expected=False, wrong="got 'stuck'"), lost], "gpu_stress")
    )[0]
    assert suite.attrib == {
        "name": "gpu_stress",
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "time": "300.1",
    }
    good, failed, error = suite
    assert [child.tag for child in good] == ["system-out"]
    assert failed[0].tag == "failure"
    assert failed[0].attrib["message"] == "got 'stuck'"
    assert error[0].tag == "error"
    assert "verdict" not in (error[1].text or "")


@given(st.text(), st.text())
def test_any_text_is_carried_by_well_formed_xml_and_one_line_of_a_table(name: str, wrong: str) -> None:
    rows = [row(name=name, wrong=wrong, as_expected=False)]
    suite = ElementTree.fromstring(junit(rows, "s").encode())[0]
    assert len(suite) == 1
    table = markdown(rows, "s").splitlines()
    assert sum(line.startswith("| ") for line in table) == 3
