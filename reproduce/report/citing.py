"""Cite the paper, and this suite with the commits that produced the numbers."""

from collections import Counter

from reproduce import published
from reproduce.records.results import Results

SHOWN = 3  # number of commits; the section Provenance lists all


def entries(results: Results) -> str:
    """Return the BibTeX entries of the paper and of this suite."""
    return f"{published.PAPER_CITATION}\n\n{published.suite_citation(_version(results))}"


def _version(results: Results) -> str:
    """List the commits that ran the finished cells, the commit with the most cells first."""
    used = Counter(
        (str(code.get("version") or "not installed"), str(code["commit"]), bool(code.get("clean")))
        for run in results.runs
        if run.done
        for code in run.codes
        if code.get("commit")
    )
    if not used:
        return "the commit that you used"
    named = [
        f"{version}, commit {commit}{'' if clean else ' with changes'}"
        for (version, commit, clean), _ in used.most_common()
    ]
    rest = f"; and {len(named) - SHOWN} more (see Provenance)" if len(named) > SHOWN else ""
    return "; ".join(named[:SHOWN]) + rest
