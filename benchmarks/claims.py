"""Compute every claim of the README and the docs from raw results, and write them there.

    python benchmarks/claims.py [--check] [--list]

The claims are declared in docs/benchmarks/claims/*.toml. Each has a sentence, the raw results that its figures
follow from, a machine, a date, the number of measurements and how many of them speak against it. `--check` changes
nothing. The exit code is 1 if a page differs or has a figure that no claim knows, or if raw results are used by no
claim, and 2 if a declaration is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
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
    name = {path: path.relative_to(ROOT).as_posix() for path in pages()}
    found = [
        f"{name[path]} is stale" for path in pages() if with_claims(path.read_text(), claims) != path.read_text()
    ]
    found += unknown_figures(pages(), ROOT, declared["not_claims"])
    used = {file for claim in claims.values() for file in claim.raw}
    kept = {path.relative_to(BENCHMARKS) for path in BENCHMARKS.glob("20*/**/*") if path.is_file()}
    found += [
        f"docs/benchmarks/{file} is used by no claim"
        for file in sorted(kept)
        if file.as_posix() not in used and file.parts[0] not in declared["quoted_by_decisions"]
    ]
    size = sum(path.stat().st_size for path in BENCHMARKS.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        found.append(f"docs/benchmarks has {size:,} bytes, more than {MOST_BYTES:,}")
    return found


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
