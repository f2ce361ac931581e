"""The workflows: a linter finds nothing, actions are pinned, and every command really runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from cook.nightly.cell_outcomes import MAX_BYTES
from tests import builds

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NIGHTLY = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
PIPELINE = "version: 1\nname: tiny\nrecipes: [tiny.yaml]\n"


COMMANDS = [s["run"] for job in NIGHTLY["jobs"].values() for s in job["steps"] if "run" in s]


def test_the_linter_finds_nothing() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    argv = [str(zizmor), "--offline", "--format=json", *map(str, WORKFLOWS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert json.loads(done.stdout) == [], done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda p: p.name)
def test_every_action_is_pinned_by_its_commit(file: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", file.read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), action


def test_no_secret_and_no_right_beyond_reading() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert "secrets." not in text
    assert "pull_request" not in text
    assert NIGHTLY["permissions"] == {}
    for job in NIGHTLY["jobs"].values():
        assert job["permissions"] == {"contents": "read"}
        assert job["runs-on"] == ["self-hosted", "gpu"]
    assert "!github.event.repository.fork" in NIGHTLY["jobs"]["plan"]["if"]


def test_no_expression_reaches_a_shell() -> None:
    assert [c for c in COMMANDS if "${{" in c] == [], "pass it through env: instead"


@pytest.mark.engine
def test_every_command_runs(tmp_path: Path, bundled: Any) -> None:
    """Plan, cells and report as the jobs run them, in order, on the demo's models."""
    (tmp_path / "tiny.yaml").write_text(builds.TINY)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    runner = Runner(tmp_path)
    jobs = NIGHTLY["jobs"]
    runner.job(jobs["plan"], {})
    matrix = json.loads(runner.outputs()["matrix"])
    assert [entry["cell"] for entry in matrix["include"]] == ["tiny-bundled"]
    for entry in matrix["include"]:
        runner.job(jobs["cell"], {f"matrix.{key}": value for key, value in entry.items()})
    runner.job(jobs["report"], {})
    assert runner.ran == set(COMMANDS)
    summary = (tmp_path / "summary").read_text()
    assert summary == (tmp_path / "report" / "summary.md").read_text()
    assert "1 cell: nothing got worse." in summary
    assert len(summary.encode()) <= MAX_BYTES
    suite = ElementTree.fromstring((tmp_path / "report" / "junit.xml").read_text())
    assert next(case.get("name") for case in suite.iter("testcase")) == "run"
    assert list((tmp_path / "night").rglob("record.json"))
    # The next plan has nothing to do, and the job that needs it is skipped.
    runner.job(jobs["plan"], {})
    assert json.loads(runner.outputs()["matrix"]) == {"include": []}


class Runner:
    """Runs the ``run:`` steps of jobs in one folder, with what GitHub would set and keep."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ran: set[str] = set()
        self.artifacts = directory / "artifacts"
        self.environment = os.environ | {
            "COOK_HOME": str(directory / "home"),
            "GITHUB_OUTPUT": str(directory / "output"),
            "GITHUB_STEP_SUMMARY": str(directory / "summary"),
            "PIPELINE": "pipeline.yaml",
            "NO_COLOR": "1",
        }

    def job(self, job: Mapping[str, Any], context: Mapping[str, str]) -> None:
        environment = self.environment | {
            name: self._value(value, context) for name, value in job.get("env", {}).items()
        }
        for step in job["steps"]:
            if "run" in step:
                self._run(step["run"], environment)
            elif "/upload-artifact@" in step["uses"]:
                name = self._value(step["with"]["name"], context)
                shutil.copytree(self.directory / step["with"]["path"], self.artifacts / name)
            elif "/download-artifact@" in step["uses"]:
                for kept in self.artifacts.glob(step["with"]["pattern"]):
                    shutil.copytree(kept, self.directory / step["with"]["path"] / kept.name)

    def _run(self, command: str, environment: Mapping[str, str]) -> None:
        self.ran.add(command)
        if command == "make setup" and not is_set_up():
            command = "make -n setup"  # a real one would rebuild the venv that runs this test
        done = subprocess.run(
            # As GitHub runs `shell: bash`.
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
            cwd=ROOT if command.startswith("make ") else self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def outputs(self) -> dict[str, str]:
        """What the last steps wrote; a later line of a name wins."""
        lines = (self.directory / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    @staticmethod
    def _value(value: str, context: Mapping[str, str]) -> str:
        return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: context[found.group(1)], value)


def is_set_up() -> bool:
    """Whether ``make setup`` has nothing to do, as on a runner that keeps its venv."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import setup as cook_setup  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    stamp = ROOT / ".venv" / ".cook-setup"
    return stamp.is_file() and stamp.read_text() == cook_setup.fingerprint()
