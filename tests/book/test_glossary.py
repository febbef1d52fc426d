"""The glossary: every term once, in both languages, with a link to a chapter of the book."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$",
                  (ROOT / "chapters" / "glossary.md").read_text("utf-8"), re.MULTILINE)[2:]


def chapters():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    files = [contents["root"], *(c["file"] for part in contents["parts"] for c in part["chapters"])]
    return {Path(file).stem for file in files}


def test_terms_are_in_order_and_once():
    terms = [english.lower() for english, *_ in ROWS]
    assert terms == sorted(set(terms))
    assert 60 <= len(terms) <= 120


@pytest.mark.parametrize("english, chinese, line, link", ROWS, ids=[row[0] for row in ROWS])
def test_a_term_has_both_languages_one_line_and_its_chapter(english, chinese, line, link):
    assert re.search(r"[\u4e00-\u9fff]", chinese)
    assert not re.search(r"[\u4e00-\u9fff]", english + line)
    assert 10 <= len(line) <= 120
    assert re.fullmatch(r"\{doc\}`(\w+)`", link).group(1) in chapters()
