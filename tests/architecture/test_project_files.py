"""The files that let others join: their schemas, and that what they call exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
SCHEMAS = {
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "feature")],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_valid_by_their_schema(schema: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, *SCHEMAS[schema]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_workflows_and_the_check_in_one_go_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    callers = [ROOT / ".ci" / "run", *SCHEMAS["github-workflows"]]
    made = {name for path in callers for name in re.findall(r"\bmake ([a-z]+)", path.read_text())}
    parts = yaml.safe_load((GITHUB / "workflows" / "nightly.yml").read_text())["jobs"]["night"]["strategy"]
    made |= set(parts["matrix"]["part"])
    assert {"lint", "test", "measure", "long"} <= made <= targets


def test_a_commit_runs_the_tools_of_the_environment() -> None:
    """With other versions than those of constraints.txt, a commit would be judged otherwise than in CI."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        tool = Path(hook["entry"].split()[0])
        assert tool.parent == Path(".venv/bin")
        assert Path(sys.executable).with_name(tool.name).exists()
