"""Compute every claim of the README and the docs from raw results, and write them there.

    python benchmarks/claims.py [--check] [--list]

The claims are declared in docs/benchmarks/claims/*.toml. Each has a sentence, the raw results that its figures
follow from, a machine, a date, the number of measurements and how many of them speak against it. `--check` changes
nothing; its exit code is 1 if raw results changed, in the working tree or by the last commit, and a page was not
written anew. The exit code is 2 if a declaration is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from lib.claims.declared import Claim, claims_of  # noqa: E402 - found by the line above
from lib.claims.pages import with_claims  # noqa: E402
from lib.claims.rows import ClaimFailed  # noqa: E402

RAW = "docs/benchmarks"


def pages(root: Path) -> list[Path]:
    """Return the pages that hold claims."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), root / RAW / "README.md"]


def changed_raw(root: Path) -> set[str]:
    """Return the raw results that the working tree or the last commit changed, relative to docs/benchmarks."""

    def files(*command: str) -> list[str]:
        done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.split() if done.returncode == 0 else []

    base = files("rev-parse", "--verify", "--quiet", "HEAD^") or ["HEAD"]  # a shallow clone has no parent
    found = files("diff", "--name-only", *base, "--", RAW) + files("ls-files", "-o", "--exclude-standard", RAW)
    return {file.removeprefix(f"{RAW}/") for file in found}


def stale_pages(root: Path, claims: Mapping[str, Claim], changed: set[str]) -> Iterator[str]:
    """Yield the pages that lack the figures of raw results that changed."""
    affected = {name: claim for name, claim in claims.items() if changed.intersection(claim.raw)}
    for path in pages(root):
        page = path.read_text()
        if with_claims(page, claims) != page and any(f":{name}" in page for name in affected):
            yield path.relative_to(root).as_posix()


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page is stale")
    parser.add_argument("--list", action="store_true", help="print the claims alone, one line each")
    arguments = parser.parse_args()
    changed = changed_raw(ROOT)
    if arguments.check and not changed:
        return 0
    try:
        claims = claims_of(ROOT / RAW)
        if arguments.check:
            stale = list(stale_pages(ROOT, claims, changed))
            for page in stale:
                print(f"{page} is stale: its raw results changed.\nRun: make claims", file=sys.stderr)
            return 1 if stale else 0
        for claim in claims.values():
            print(f"{claim.name}: {claim.sentence} ({claim.date}, n {claim.n}, misses {claim.misses})")
        if not arguments.list:
            for path in pages(ROOT):
                path.write_text(with_claims(path.read_text(), claims))
    except ClaimFailed as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
