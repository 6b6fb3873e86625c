"""The files that let others join: their schemas, and that what they call or link exists."""

import re
import subprocess
import sys
import tomllib
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
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
PAGES = [ROOT / name for name in TRACKED if name.endswith(".md") and not name.startswith("tests/")]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_valid_by_their_schema(schema: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, *SCHEMAS[schema]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_workflows_and_the_check_in_one_go_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    callers = [ROOT / "README.md", ROOT / ".ci" / "run", *SCHEMAS["github-workflows"]]
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


def test_pages_and_messages_install_extras_that_exist_from_a_checkout() -> None:
    """No package index has tritune: `pip install 'tritune[torch]'` would install nothing, or a stranger's."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    texts = {name: (ROOT / name).read_text() for name in TRACKED if name.endswith((".py", ".md", ".yml"))}
    lines = [line for name, text in texts.items() if not name.startswith("tests/") for line in text.splitlines()]
    told = {
        (what, extra)
        for line in lines
        for what, some in re.findall(r"pip install .*?['\" ]([\w./-]+)\[([\w,-]+)\]", line)
        for extra in some.split(",")
    }
    told |= {
        (".", extra)
        for text in texts.values()
        for extra in re.findall(r"install_command\([\"']([\w-]+)[\"']\)", text)
    }
    assert {what for what, _ in told} == {"."}
    assert {extra for _, extra in told} <= extras
    assert {"embedded", "torch", "postgresql"} <= {extra for _, extra in told}


def test_links_of_the_pages_lead_somewhere() -> None:
    texts = {page: re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S) for page in PAGES}
    for page, text in texts.items():
        for path, anchor in re.findall(r"(?:\]\(|src=\")(?!https?:)([^)#\s\"]*)(?:#([\w-]+))?[)\"]", text):
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{path} in {page}"
            headings = re.findall(r"^#+ (.+)$", texts.get(target, ""), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in {*anchors, ""}, f"{path}#{anchor} in {page}"


def test_the_names_in_the_tour_of_the_code_are_there() -> None:
    tour = (ROOT / "docs" / "contributing-tour.md").read_text()
    names = re.findall(r"`((?:deploy|loadgen|model_repo|optimizer|search)\.[\w.]+(?::[\w.]+)?)`", tour)
    assert len(names) > 40
    subprocess.run([sys.executable, "-c", f"import pkgutil; [*map(pkgutil.resolve_name, {names})]"], check=True)
