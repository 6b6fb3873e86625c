"""Compute every claim of the README and the docs from raw results, and write them there.

    python benchmarks/claims.py [--check] [--list]

The claims are declared in docs/benchmarks/claims/*.toml. Each has a sentence, the raw results that its figures
follow from, a machine, a date, the number of measurements and how many of them speak against it. `--check` changes
nothing. The exit code is 1 if a page differs or has a figure that no claim knows, or if raw results are used by no
claim, and 2 if a declaration is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from lib.claims.declared import NOT_CLAIMS, claims_of  # noqa: E402 - found by the line above
from lib.claims.pages import unknown_figures, with_claims  # noqa: E402
from lib.claims.rows import ClaimFailed  # noqa: E402

BENCHMARKS = ROOT / "docs" / "benchmarks"
MOST_BYTES = 1_000_000
"""All that docs/benchmarks may hold: one set of measurements per claim."""
GENERATED = {"cli.md"}
FOLDER = re.compile(r"(?:benchmarks/|`)(20\d\d-\d\d-\d\d-[a-z][\w-]*)(?=[/)`])")
"""A folder of raw results, as pages name it."""


def pages() -> list[Path]:
    """Return the pages whose figures have to be claims."""
    docs = (ROOT / "docs").glob("*.md")
    return [
        ROOT / "README.md",
        *sorted(path for path in docs if path.name not in GENERATED),
        BENCHMARKS / "README.md",
    ]


def problems() -> list[str]:
    """Return what is wrong, one line each: stale pages, unknown figures, raw results that no claim uses."""
    claims = claims_of(BENCHMARKS)
    declared = tomllib.loads((BENCHMARKS / "claims" / NOT_CLAIMS).read_text())
    stale = [path for path in pages() if with_claims(path.read_text(), claims) != path.read_text()]
    return [
        *(f"{path.relative_to(ROOT).as_posix()} is stale" for path in stale),
        *unknown_figures(pages(), ROOT, declared["not_claims"]),
        *problems_of_raw(
            {file for claim in claims.values() for file in claim.raw}, declared["quoted_by_decisions"]
        ),
        *folders_that_are_gone(),
    ]


def problems_of_raw(used: set[str], quoted: list[str]) -> Iterator[str]:
    """Yield raw results that no claim uses and no decision quotes, and the size if it is too large."""
    files = [path for path in BENCHMARKS.rglob("*") if path.is_file()]
    for file in sorted(path.relative_to(BENCHMARKS) for path in files):
        if file.parts[0].startswith("20") and file.as_posix() not in used and file.parts[0] not in quoted:
            yield f"docs/benchmarks/{file} is used by no claim"
    size = sum(path.stat().st_size for path in files)
    if size > MOST_BYTES:
        yield f"docs/benchmarks has {size:,} bytes, more than {MOST_BYTES:,}"


def folders_that_are_gone() -> Iterator[str]:
    """Yield folders of raw results that a page or a decision names and that are not there."""
    for page in (ROOT / "CHANGELOG.md", *pages(), *sorted((ROOT / "docs" / "adr").glob("*.md"))):
        for name in sorted(set(FOLDER.findall(page.read_text()))):
            if not (BENCHMARKS / name).is_dir():
                yield f"{page.relative_to(ROOT).as_posix()} names {name}, which is no folder"


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is wrong")
    parser.add_argument("--list", action="store_true", help="print the claims alone, one line each")
    arguments = parser.parse_args()
    try:
        claims = claims_of(BENCHMARKS)
        if arguments.list or not arguments.check:
            for claim in claims.values():
                print(f"{claim.name}: {claim.sentence} ({claim.date}, n {claim.n}, misses {claim.misses})")
        if arguments.list:
            return 0
        if not arguments.check:
            for path in pages():
                path.write_text(with_claims(path.read_text(), claims))
        found = problems()
    except ClaimFailed as problem:
        print(problem, file=sys.stderr)
        return 2
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
