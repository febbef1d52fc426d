"""Casts beside their chapters: what a file leaves out is found, and what is forgotten gives one sentence."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnmath.page import __main__ as command
from attnmath.page.language import letters
from attnmath.page.language.chapter import PageFault, read_text
from attnmath.page.ledger.ledger import hashes
from attnmath.page.ledger.rows import RowKeys
from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.casts import FOLDER, repeated, written
from attnmath.page.scenes.settings import setting, three
from attnmath.page.verdicts import book as pool
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge

ROOT = Path(__file__).parents[2]
NOTATION = r"""
| letter | shape | meaning |
| --- | --- | --- |
| $Q$, $K$ | $n \times d$, $m \times d$ | queries, keys |
| $A$ | $n \times m$ | scores |
| $Q_h$, $K_h$, $A_h$ | as $Q$, $K$, $A$ | of head $h$ |
| $b$, $c$ | number | two numbers |
"""
PAGE = r"""# A page

$$ A = c Q K^{\mathsf T} $$ (prp:scores)

$$ dQ = c\, dA\, K $$ (prp:back)

$$ b A + b A = 2 b A $$ (prp:twice)
"""
CASTS = """from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import three

SCORES = Cast(
    name="scores",
    sizes={"n": 4, "m": 5, "d": 3},
    letters=drawn("Q, K, b, c") | made("A"),
    outputs=("A",),
    settings=three(1, n=3, m=2, d=4),
)
CASTS = (SCORES,)
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "page.py").write_text(CASTS)
    (tmp_path / "chapters" / "page.md").write_text(PAGE)
    (tmp_path / "chapters" / "notation.md").write_text(NOTATION)
    return tmp_path


def check(root, capsys) -> list[str]:
    """What the command says of this book, but for the functions that have no display in it."""
    command.main(["check", "--root", str(root)])
    return [line for line in capsys.readouterr().out.split("\n") if "no display has this label" not in line]


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_book_whose_files_say_names_and_sizes_alone(root, capsys):
    (cast,) = Book.at(root).casts["page"]
    assert {k: one.axes for k, one in cast.letters.items()} == {
        "Q": ("n", "d"), "K": ("m", "d"), "b": ("1", "1"), "c": ("1", "1"), "A": ("n", "m")}
    assert cast.letters["A"].origin == "prp:scores"
    assert check(root, capsys)[0].startswith("displays that hold: 3,")


FORGOTTEN = {
    "a cast": (("page.py", CASTS, "CASTS = ()"), "chapters/page.md:3:3: prp:scores: letter: this chapter has no cast;"
               " write chapters/_casts/page.py"),
    "the file": (("page.py", None, None), "chapters/page.md:3:3: prp:scores: letter: this chapter has no cast;"
                 " write chapters/_casts/page.py"),
    "the tuple": (("page.py", "CASTS = ", "CAST = "), "chapters/_casts/page.py:1:1: a file of casts has CASTS, a tuple of"
                  " casts, or of the names of casts of other chapters"),
    "a letter": (("page.py", "Q, K, b, c", "Q, K, c"), "chapters/page.md:7:4: prp:twice: letter: b is not in the cast"
                 " 'scores'; chapters/_casts/page.py:5 has the letters: drawn, or made(...) by a display"),
    "a letter of a definition": (("page.py", "Q, K, b, c", "Q, K, b"), "chapters/_casts/page.py:5:1: no display of"
                                 " chapters/page.md defines A of the cast 'scores': write which label does; in prp:scores,"
                                 " c is not in the cast 'scores'; chapters/_casts/page.py:5 has the letters: drawn, or made(...) by a display"),
    "a line of a table": (("notation.md", "$b$, $c$ |", "$b$ |"), "chapters/_casts/page.py:5:1: c has no line with a shape"
                          " in a table of letters: write it there, or here, in the cast 'scores'"),
    "a shape": (("notation.md", "number", "a number, or two"), "chapters/_casts/page.py:5:1: b has no line with a shape"
                " in a table of letters: write it there, or here, in the cast 'scores'"),
    "a definition": (("page.md", "A = c", "A + A = 2 c"), "chapters/_casts/page.py:5:1: no display of chapters/page.md"
                     " defines A of the cast 'scores': write which label does"),
    "the chapter": (("pages.py", None, "CASTS = ()"), "chapters/_casts/pages.py:1:1: there is no chapter pages.md"),
    "a cast that is named": (("page.py", "CASTS = (SCORES,)", 'CASTS = ("score",)'), "chapters/_casts/page.py:1:1: no"
                             " chapter has a cast 'score'"),
    "that a table has it": (("page.py", "b, c", "b, c: number"), "chapters/_casts/page.py:5:1: c of the cast"
                            " 'scores' has this shape in a table of letters: do not repeat it"),
    "a bracket": (("page.py", "CASTS = (SCORES,)", "CASTS = (SCORES,"), "chapters/_casts/page.py:11:1: SyntaxError:"
                  " '(' was never closed"),
    "an import": (("page.py", "CASTS = (", "CASTS = (lost, "), "chapters/_casts/page.py:11:1: NameError: name 'lost'"
                  " is not defined"),
    "what a setting fills": (("page.py", "three(1", 'three(1, lambda x, sizes: x["omega"]'), "chapters/page.md:3:3:"
                             " prp:scores: letter: the setting 'random' of the cast 'scores' fails: KeyError: 'omega'"),
    "a letter that is an output": (("page.py", 'outputs=("A",)', 'outputs=("O",)'), "chapters/_casts/page.py:5:1: O is none"
                                   " of the letters of the cast 'scores': drawn, or made"),
    "that a name is taken": (("page.py", "CASTS = (SCORES,)", "CASTS = (SCORES, SCORES.plus({}))"), "chapters/_casts/page.py:5:1:"
                             " the name 'scores' is taken: a cast in chapters/_casts/page.py:5 has it"),
    "that a letter has a shape": (("notation.md", "| $A$ | $n", "| $b$ | $n \\times d$ | again |\n| $A$ | $n"), "chapters/notation.md:1:1:"
                                  " the table of letters says two shapes of b: 1 × 1 and n × d"),
    "a size": (("page.py", '"m": 5, ', ""), "chapters/_casts/page.py:5:1: K has the size m, of which the cast 'scores'"
               " says nothing"),
}


@pytest.mark.parametrize("change, sentence", FORGOTTEN.values(), ids=FORGOTTEN)
def test_what_is_forgotten_gives_one_sentence_that_names_the_file_to_edit(root, capsys, change, sentence):
    name, old, new = change
    path = root / (FOLDER if name.endswith(".py") else "chapters") / name
    if new is None:
        path.unlink()
    elif old is None:
        path.write_text(new)
    else:
        edit(path, old, new)
    assert sentence in check(root, capsys)


@pytest.mark.parametrize("old, new", [
    (r"$n \times d$, $m", r"$d \times n$, $m"), (r"$m \times d$", r"$n \times d$"), (r"| $A$ | $n \times m$", r"| $A$ | $m \times n$"),
    (r"| $A$ | $n \times m$", r"| $A$ | $n \times 1$"), ("| number", r"| $n \times m$"), ("| number", r"| $1 \times d$")])
def test_a_wrong_shape_in_a_table_is_found(root, capsys, old, new):
    edit(root / "chapters" / "notation.md", old, new)
    assert any("prp:scores: shape: " in line for line in check(root, capsys))


@pytest.fixture(scope="module")
def book():
    return Book.at(ROOT)


REAL = {
    "notation: keys": ("notation", r"| $K$ | $m \times d_k$", r"| $K$ | $n \times d_k$", "eq:attention_map"),
    "notation: biases": ("notation", r"$1 \times d_k$, $1 \times d_k$, $1 \times d_v$", r"$1 \times d_k$, $1 \times d_v$, $1 \times d_v$", "eq:multihead_map"),
    "notation: groups": ("notation", r"| $K_g$, $V_g$ | $m \times d_k$", r"| $K_g$, $V_g$ | $m \times d_v$", "prp:grouped_map"),
    "notation: a statistic": ("notation", r"| $D$ | $n \times 1$", r"| $D$ | $n \times m$", "prp:row_statistic"),
    "flash: a sum": ("flash", r"| $s_t$ | $n \times 1$", r"| $s_t$ | $n \times d_v$", "eq:flash_attention"),
    "blocks: a mean": ("blocks", r"| $\mu$ | $n \times 1$", r"| $\mu$ | $n \times d$", "eq:layer_norm"),
    "softmax: a Jacobian": ("softmax", r"| $J$ | $n \times m \times m$", r"| $J$ | $m \times m \times m$", "eq:softmax_jacobian"),
    "source_blog: side by side": ("source_blog", r"| $A$ | $n \times H m$", r"| $A$ | $n \times m$", "prp:blog_forward"),
}


@pytest.mark.parametrize("stem, old, new, label", REAL.values(), ids=REAL)
def test_a_wrong_shape_in_a_table_of_the_book_is_found(book, stem, old, new, label):
    texts = {chapter.stem: chapter for chapter in book.chapters}
    assert old in texts[stem].text
    changed = replace(texts[stem], text=new.join(texts[stem].text.rsplit(old, 1)))
    other = Book([changed if one.stem == stem else one for one in book.chapters], written(ROOT))
    with pytest.raises(PageFault, match="shape|index|defines"):
        judge(other, other.displays[label])


def test_no_file_repeats_a_table(book):
    assert repeated(book.chapters, written(ROOT)) == []


def test_the_book_has_a_file_for_each_chapter_with_displays(book):
    assert {chapter.stem for chapter in book.chapters if chapter.displays} == set(book.casts)


def test_tables_are_read():
    found = letters.shapes_in(r"""
| letter | shape | meaning |
| --- | --- | --- |
| $M_h$, $N_h$ | $d \times H d_v$, number | two |
| $q_i$, $a$ | $1 \times d$, number | of which one is a row of $Q$ |
| $U$, $V$ | $n \times d$; in a layer $n \times m$ | the first counts |
| $S$ | sequences $\times n$ | in words |
| $\hat P$, $T'$ | as $U$, $M_h$ | |

| here | there |
| --- | --- |
| $X$ | $n \times d$ |
""")
    line, number = letters.Line, ("1", "1")
    assert found == {
        "M": [line("h", ("d", "H*d_v"))], "N": [line("h", number)], "a": [line("", number)], "S": [line()],
        "U": [line("", ("n", "d"))], "V": [line("", ("n", "d"))], "hat P": [line(like="U")], "T'": [line(like="M")]}


@pytest.mark.parametrize("sizes, same, shape", [
    ({}, {}, ("m", "d")), ({"H": 2}, {}, ("H", "m", "d")), ({"H": 2}, {"m": "n"}, ("H", "n", "d")), ({}, {"d": "m"}, ("m", "m"))])
def test_a_letter_is_a_family_where_the_cast_has_heads(sizes, same, shape):
    cast = Cast(name="one", sizes={"n": 3, "m": 4, "d": 5, **sizes}, letters=drawn("K"), settings=(), same=same)
    assert Book([read_text(NOTATION, "notation.md")], {"page": (cast,)}).casts["page"][0].letters["K"].axes == shape


def shape_of(letter, **texts):
    cast = Cast(name="one", sizes={"n": 4, "m": 5}, letters=drawn(letter), settings=())
    chapters = [read_text(text, f"chapters/{stem}.md") for stem, text in texts.items()]
    book = Book(chapters, {"page": (cast,)})
    assert book.faults == [], book.faults
    return book.casts["page"][0].letters[letter].axes


def test_the_own_table_comes_before_the_notation_and_that_before_the_others():
    def of(shape, more=""):
        return f"\n## Letters of this chapter\n{more}\n| letter | shape | meaning |\n| --- | --- | --- |\n| $c$ | ${shape}$ | |\n"

    other, named = of(r"m \times m"), "\n## Letters of this chapter\n\nThose of {doc}`other`.\n"
    assert shape_of("c", page=of(r"n \times n"), notation=NOTATION, other=other) == ("n", "n")
    assert shape_of("c", page=named, notation=NOTATION, other=other) == ("1", "1")
    assert shape_of("c", page=named, notation="", other=other) == ("m", "m")
    with pytest.raises(AssertionError, match="c has no line with a shape in a table of letters"):
        shape_of("c", page="", notation="", other=other)


def definition(text, letters="A", **cast):
    one = Cast(name="one", sizes={"n": 4, "m": 5, "H": 2}, letters=drawn("Q: n m") | made(letters), settings=(), **cast)
    book = Book([read_text(text, "chapters/page.md")], {"page": (one,)})
    assert book.faults == [], book.faults
    (found,) = book.casts["page"]
    return {k: spec.origin for k, spec in found.letters.items() if not spec.is_primal}


def test_the_display_is_found_that_defines_all_letters_of_a_group():
    first, both = "$$ A = Q $$ (prp:first)\n\n", "$$ A = 2 Q, \\quad P = A + Q $$ (prp:both)\n\n"
    wrong = "$$ A = A + 0 Q $$ (prp:itself)\n\n$$ A = 3 Q $$ (err:published)\n\n$$ A = X $$ (prp:unknown)\n\n"
    assert definition(first + both, "A: n m") == {"A": "prp:first"}
    assert definition(first + both, "A: n m, P: n m") == {"A": "prp:both", "P": "prp:both"}
    assert definition(wrong + both, "A: n m") == {"A": "prp:both"}
    with pytest.raises(AssertionError, match="no display of chapters/page.md defines A of the cast 'one'"):
        definition("$$ A = Q $$ (prp:no_members)", "A: H n m")


def test_a_mistake_in_one_cast_hides_no_other(root, capsys):
    edit(root / "chapters" / "notation.md", "$b$, $c$ |", "$c$ |")
    edit(root / "chapters" / "page.md", "dQ = c", "dQ = c c")
    found = "\n".join(check(root, capsys))
    assert "b has no line with a shape" in found and "prp:back: value: " in found


ENTROPY = """
$$ s = \\operatorname{rowsum}(A) $$ (prp:sums)

## Letters of this chapter

| letter | shape | meaning |
| --- | --- | --- |
| $s$ | $n \\times 1$ | sums of the rows of $A$ |
"""


def test_a_letter_that_a_display_makes_needs_no_word_in_the_cast(root):
    """Where the cast is written, all chapters have it with this letter; elsewhere that chapter alone."""
    (root / "chapters" / "more.md").write_text("# More\n" + ENTROPY)
    (root / FOLDER / "more.py").write_text('CASTS = ("scores",)\n')
    (home,), (more,) = Book.at(root).casts["page"], Book.at(root).casts["more"]
    assert "s" not in home.letters and more.letters["s"].origin == "prp:sums" and more.name == "scores in more"
    edit(root / "chapters" / "page.md", "$$ b A", ENTROPY.partition("\n\n## ")[0] + "\n\n$$ b A")
    edit(root / "chapters" / "page.md", "(prp:twice)\n", "(prp:twice)\n" + "\n## " + ENTROPY.partition("\n\n## ")[2])
    (root / "chapters" / "more.md").write_text("# More\n")
    book = Book.at(root)
    assert book.casts["page"] == book.casts["more"] and book.casts["more"][0].letters["s"].origin == "prp:sums"


def test_a_cast_is_made_from_another():
    one = Cast(name="one", sizes={}, letters=drawn("Q, K") | made("A, L"), settings=three(1, n=3), rows=rows("q, hat k"))
    more = one.plus(positive("K") | drawn("c: number"), name="more")
    assert list(more.letters) == ["Q", "K", "c", "A", "L"] and more.name == "more"
    assert more.letters["K"].origin == "positive" and more.letters["c"].axes == ("1", "1")
    assert list(more.without("Q, L").letters) == ["K", "c", "A"] and more.without("Q").rows == {"hat k": "hat K"}
    assert [(s.name, s.seed, s.sizes) for s in one.settings] == [
        ("random", 1, {}), ("random again", 2, {}), ("sizes in another order", 3, {"n": 3})]


def test_changes_follow_each_other():
    def times(x):
        return lambda values, sizes: values.update(a=values["a"] * x)

    def plus(values, sizes):
        values["a"] += sizes["n"]

    values = {"a": 1}
    setting("one", 1, times(5), plus).then(times(2)).change(values, {"n": 3})
    assert values == {"a": 16}


def test_a_changed_file_is_read_again_and_two_books_do_not_meet(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / FOLDER).mkdir(parents=True)
    (other / FOLDER / "page.py").write_text(CASTS.replace("scores", "others"))
    assert [written(one)["page"][0].name for one in (root, other, root)] == ["scores", "others", "scores"]
    edit(root / FOLDER / "page.py", "scores", "sceres")
    assert written(root)["page"][0].name == "sceres"
    assert not list(root.rglob("__pycache__"))


def test_a_shared_file_has_no_chapter_and_its_casts_have_their_place(root):
    (root / FOLDER / "_shared.py").write_text(CASTS.replace("CASTS = (SCORES,)\n", ""))
    (root / FOLDER / "page.py").write_text("from ._shared import SCORES\n\nCASTS = (SCORES,)\n")
    (root / FOLDER / "more.py").write_text('CASTS = ("scores",)\n')
    book = Book.at(root)
    assert book.casts["page"] == book.casts["more"] and set(book.casts) == {"page", "more"}
    assert book.casts["more"][0].file == "chapters/_casts/_shared.py:5"


def test_the_ledger_is_stale_after_a_cast_or_a_table_has_changed(root):
    def key():
        book = Book.at(root)
        return hashes(book, RowKeys(book, root))["chapters/page.md"]

    first = key()
    edit(root / FOLDER / "page.py", "three(1", "three(2")
    second = key()
    edit(root / "chapters" / "notation.md", "| number |", r"| $1 \times d$ |")
    assert len({first, second, key()}) == 3


def test_processes_that_are_not_forked_have_the_casts_too(root, monkeypatch):
    monkeypatch.setattr(pool, "FORKS", False)
    book = Book.at(root)
    found = pool.each_cast(judge, book, root, list(book.displays.values()))
    assert [one.display.label for one in found] == ["prp:scores", "prp:back", "prp:twice"]
