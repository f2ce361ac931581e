"""A night as JUnit XML, which CI services show as tests: one case a gate, one suite a cell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from cook.nightly.gates import Verdict

if TYPE_CHECKING:
    from cook.nightly.cell_outcome import CellOutcome

# What XML 1.0 cannot carry, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_TEXT = 10_000
_ELEMENTS = {Verdict.REGRESSION: "failure", Verdict.NOT_JUDGED: "skipped"}


def junit(outcomes: Iterable[CellOutcome]) -> bytes:
    """The XML document, UTF-8, with its declaration.

    A regression is a failure, a cell that could not run an error, and a gate that was not judged
    is skipped with its reason.
    """
    root = ElementTree.Element("testsuites", name="cook sweep")
    for outcome in outcomes:
        suite = ElementTree.SubElement(root, "testsuite", name=_text(outcome.cell))
        run = _case(suite, outcome, "run")
        run.set("time", f"{outcome.seconds:.1f}")
        if outcome.error is not None:
            error = ElementTree.SubElement(run, "error", message=_text(outcome.summary))
            error.text = _text(outcome.error)
        for finding in outcome.findings:
            case = _case(suite, outcome, f"{finding.gate} of {finding.subject}")
            if (element := _ELEMENTS.get(finding.verdict)) is not None:
                ElementTree.SubElement(case, element, message=_text(finding.text))
        suite.set("tests", str(1 + len(outcome.findings)))
        for kind in ("failure", "error", "skipped"):
            attribute = kind if kind == "skipped" else f"{kind}s"
            suite.set(attribute, str(len(suite.findall(f"./testcase/{kind}"))))
        suite.set("time", f"{outcome.seconds:.1f}")
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _case(suite: ElementTree.Element, outcome: CellOutcome, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", classname=_text(outcome.cell), name=_text(name)
    )


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)[:MAX_TEXT]
