"""What a newcomer meets first: the targets of the Makefile and the links of the documents."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_make_help_lists_the_jobs() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in shown.stdout.splitlines()}
    assert listed >= {"setup", "demo", "test", "lint", "bench", "docs", "clean"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_lock_file_names_no_registry() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()
