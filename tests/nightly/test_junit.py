"""A night as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from cook.nightly.gates import Verdict
from cook.nightly.junit import junit
from tests.nightly.outcomes import FAILED, WORSE, finding, outcome


def test_junit_has_a_case_a_gate() -> None:
    root = ElementTree.fromstring(junit([outcome(), WORSE, FAILED]))
    suites = {s.get("name"): s for s in root}
    assert suites["demo-ik"].attrib | {"time": ""} == {
        "name": "demo-ik",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
        "time": "",
    }
    failure = suites["demo-ik"].find("testcase/failure")
    assert failure.get("message") == "62 to 59"
    skipped = suites["demo-ik"].find("testcase/skipped")
    assert skipped.get("message") == "62 to 59"
    error = suites["broken-ik"].find("testcase/error")
    assert error.text == "no engine\nis called ik"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_sound_xml(text: str) -> None:
    suite = ElementTree.fromstring(junit([outcome(text, finding(Verdict.REGRESSION), error=text)]))
    assert len(list(suite.iter("testcase"))) == 2
