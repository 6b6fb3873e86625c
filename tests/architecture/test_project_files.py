"""The files that let others join: their schemas, and that what they call exists."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
SCHEMAS = {
    "workflows/ci.yml": "github-workflows",
    "workflows/release.yml": "github-workflows",
    "dependabot.yml": "dependabot",
    "ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    "ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    "ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


def jobs() -> dict[str, Any]:
    return dict(yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"])


def made() -> set[str]:
    """The targets that the workflow makes, by name."""
    steps = [(job, step.get("run", "")) for job in jobs().values() for step in job["steps"]]
    found = {name for _, line in steps for name in re.findall(r"^make ([a-z]+)$", line, re.MULTILINE)}
    parts = [job["strategy"]["matrix"]["part"] for job, line in steps if "matrix.part" in line]
    return found.union(*parts)


def test_each_file_has_a_schema() -> None:
    assert {str(path.relative_to(GITHUB)) for path in GITHUB.rglob("*.yml")} == set(SCHEMAS)


@pytest.mark.parametrize(("name", "schema"), SCHEMAS.items())
def test_a_file_is_valid_by_its_schema(name: str, schema: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, str(GITHUB / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_does_what_the_check_in_one_go_does() -> None:
    check = (ROOT / ".ci" / "run").read_text()
    assert set(re.findall(r"^make ([a-z]+)", check, re.MULTILINE)) <= made()
    assert ".ci/demo.py" in check
    assert any(".ci/demo.py" in step.get("run", "") for step in jobs()["demo"]["steps"])
    workflow = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())
    assert f"EXTRAS={workflow['env']['EXTRAS']}\n" in check


def test_what_the_workflow_makes_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert made() <= targets


def test_a_commit_runs_the_tools_of_the_environment() -> None:
    """With other versions than those of constraints.txt, a commit would be judged otherwise than in CI."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        tool = Path(hook["entry"].split()[0])
        assert tool.parent == Path(".venv/bin")
        assert Path(sys.executable).with_name(tool.name).exists()
