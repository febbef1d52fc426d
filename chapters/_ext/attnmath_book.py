"""What this book adds to Sphinx.

* A page is its text and what the notebook's cells printed. The notebook's own words are for hosts
  that know no MyST; the numbers that they have are compared with the page's.
* MathJax, its assistive MathML and nothing else of it, from a package: no page needs a network.
* Below each equation `eq:name`, a link to `attnmath.name`; in that function's docstring,
  `chapters/softmax.md, eq:softmax` becomes links back. Below each listing, a link to its module.
* Lines break where a reader expects it: not between a formula and its comma, nor after the sign of -inf;
  sentences that a cell prints are wrapped. The titles of exercises have no brackets around brackets.
* The page that moves: what stands in `explorer.html`, and its scripts, where a page has a place for it.
* Edit, Colab and Binder buttons where BOOK_REPOSITORY says where the book lives.
"""

import importlib.metadata
import json
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx_exercise.nodes import exercise_enumerable_node, solution_node

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
import nb  # noqa: E402
from derived import Book  # noqa: E402

MATHJAX = ("tex-svg.js", "a11y/assistive-mml.js")
LOGGER = logging.getLogger(__name__)
LISTED = re.compile(r"\.\./(attnmath/[\w/]+)\.py(?:#\w+)?")
FUNCTION_LABEL = re.compile(r"^eq:([A-Za-z]\w*)$")
DERIVED_IN = re.compile(r"chapters/(\w+)\.md")
LABEL = re.compile(r"(?<![\w`:])eq:(\w+)")
SIGNED = re.compile(r"(?<![^\s(“])([-+][A-Za-z][\w.]*)")
ATTACHED = r"[^\s\u4e00-\u9fff]*"      # up to a space; Chinese has none, and breaks anywhere
SENTENCE = re.compile(r"Not yet\. |[A-Z](?!.*(  |\[))")    # no columns, no row of an array
EXPLORER = "<!-- the head that moves -->"
COMMENT = re.compile(r"\s*(<!--((?!-->).)*-->\s*)*", re.S)


def read_text(app, docname, source):
    """In place of a chapter's notebook, its text in MyST, with what the notebook's cells printed."""
    path = Path(app.env.doc2path(docname))
    text = path.with_suffix(".md")
    if path.suffix != ".ipynb" or not text.exists():
        return
    app.env.note_dependency(str(text))
    book = nb.read_text(text)
    for id in nb.fill(book, nbformat.reads(source[0], as_version=4)):
        LOGGER.warning("the notebook has no cell %s; make notebooks", id, location=docname)
    source[0] = nbformat.writes(book)


def compare_numbers(app, env):
    """Notebooks have the numbers of displays, figures and exercises that the page has."""
    numbers = {prefix + nodes.make_id(label): number for label, number in Book(HERE.parent).numbers.items()
               for prefix in ("", "equation-")}
    for docname, kinds in env.toc_fignumbers.items():
        for id, number in (pair for kind in kinds.values() for pair in kind.items()):
            here, there = ".".join(map(str, number)), numbers.get(id)
            if there != here and Path(env.doc2path(docname)).suffix == ".ipynb":
                LOGGER.warning("%s has the number %s on the page, and %s in the notebook", id, here, there,
                               location=docname)


def link_listings(app, doctree, docname):
    """Below a listing, a link to the whole function in its highlighted source, which leads back."""
    for link in doctree.findall(nodes.reference):
        file = LISTED.fullmatch(link.get("refuri", ""))
        if not file:
            continue
        module, listing = file[1].replace("/", "."), link.parent.parent
        _, tags, used, documented = sources(app.env, module)
        name = re.search(r"^def (\w+)", listing.astext(), re.MULTILINE)[1]
        if name in tags and name not in used:
            used[name] = docname
            listing["ids"].append(f"{documented}.{name}")
        link["refuri"] = app.builder.get_relative_uri(docname, f"_modules/{file[1]}") + f"#{name}" * (name in used)


def sources(env, module):
    """What sphinx.ext.viewcode keeps of a module: its code, places, what is documented, and by which name."""
    modules = env.__dict__.setdefault("_viewcode_modules", {})
    if not modules.get(module):
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.find_tags()
        modules[module] = analyzer.code, analyzer.tags, {}, module
    return modules[module]


class LinkEquations(SphinxTransform):
    """A line below each equation that a function computes: the function's name, as a link."""

    default_priority = 20   # before the references are resolved

    def apply(self):
        for block in list(self.document.findall(nodes.math_block)):
            label = FUNCTION_LABEL.match(block.get("label") or "")
            if not label:
                continue
            name = label.group(1)
            link = addnodes.pending_xref(
                "", nodes.literal("", f"attnmath.{name}"), refdomain="py", reftype="obj",
                reftarget=f"attnmath.{name}", refexplicit=True, refwarn=True,
                refdoc=self.env.docname)
            line = nodes.paragraph("", "", nodes.inline("", "in code: "), link,
                                   classes=["equation-code"])
            block.parent.insert(block.parent.index(block) + 1, line)


class CountDisplays(SphinxTransform):
    """Every display that is rendered is one that was run: the same labels, in the same order.

    Every inline formula that is rendered is one that was read, in the text or in an output.
    """

    default_priority = 15

    def apply(self):
        path = Path(self.env.doc2path(self.env.docname))
        text = path.with_suffix(".md")
        if not text.exists():
            return
        from attnmath.page.language.chapter import read_chapter

        chapter = read_chapter(text)
        formulas = {plain(node.astext()) for node in self.document.findall(nodes.math)}
        unread = formulas - set(map(plain, chapter.inline)) - self.printed(path)
        if unread:
            LOGGER.warning("formulas that are rendered and were not read: %s", ", ".join(sorted(unread)),
                           location=self.env.docname)
        raw = [node.astext() for node in self.document.findall(nodes.raw) if not COMMENT.fullmatch(node.astext())]
        if raw:
            LOGGER.warning("HTML that was not read: %s", raw[0], location=self.env.docname)
        rendered = [block.get("label") for block in self.document.findall(nodes.math_block)]
        run = [display.label for display in chapter.displays]
        if rendered != run:
            odd = sorted(set(map(str, rendered)) ^ set(run)) or ["their order"]
            LOGGER.warning("displays that are rendered and displays that are run differ: %s",
                           ", ".join(odd), location=self.env.docname)


    @staticmethod
    def printed(path):
        """The formulas in what a notebook's cells print, which `tools/nb.py check` has read."""
        if path.suffix != ".ipynb":
            return set()
        from attnmath.page.language.chapter import read_text

        cells = json.loads(path.read_text("utf-8"))["cells"]
        shown = (out.get("data", {}) for cell in cells for out in cell.get("outputs", ()))
        outputs = (data.get("text/markdown", "") for data in shown)
        return {plain(formula) for out in outputs for formula in read_text("".join(out)).inline}


def plain(formula):
    return " ".join(formula.split())


class KeepTogether(SphinxPostTransform):
    """No line begins with the comma after a formula, ends with the bracket before it, or with the sign of -inf.

    Browsers break before and after a formula, whatever stands there.
    """

    default_priority = 900      # when the links are there
    formats = ("html",)
    verbatim = (nodes.literal, nodes.FixedTextElement, nodes.math, nodes.raw, addnodes.desc_signature)

    def run(self):
        for math in list(self.document.findall(nodes.math)):
            self.keep(math)
        for text in list(self.document.findall(nodes.Text)):
            parts = SIGNED.split(text.astext())
            if len(parts) > 1 and not self.is_verbatim(text):
                words = [nodes.Text(part) for part in parts]
                words[1::2] = map(kept, words[1::2])
                text.parent.replace(text, [word for word in words if word.astext()])

    @staticmethod
    def keep(math):
        parent, at = math.parent, math.parent.index(math)
        before, after = ([*parent[:at]] or [None])[-1], ([*parent[at + 1:]] or [None])[0]
        head = re.search(ATTACHED + "$", before.astext())[0] if isinstance(before, nodes.Text) else ""
        tail = re.match(ATTACHED, after.astext())[0] if isinstance(after, nodes.Text) else ""
        glued = isinstance(before, nodes.inline) and "kept" in before["classes"]
        if not (head or tail or glued):
            return
        group = [nodes.Text(head)] * bool(head) + [math] + [nodes.Text(tail)] * bool(tail)
        if tail:
            parent[at + 1:at + 2] = [nodes.Text(after.astext()[len(tail):])] * (len(after.astext()) > len(tail))
        parent.remove(math)
        if glued:
            before.extend(group)
            return
        if head:
            parent[at - 1:at] = [nodes.Text(before.astext().removesuffix(head)), kept(*group)]
        else:
            parent.insert(at, kept(*group))

    def is_verbatim(self, node):
        while node := node.parent:
            if isinstance(node, self.verbatim):
                return True
        return False


def kept(*children):
    return nodes.inline("", "", *children, classes=["kept"])


class MendTitles(SphinxPostTransform):
    """Exercise 3.1 · By hand (compute), in place of Exercise 3.1 (By hand (compute)); and what is wrapped."""

    default_priority = 23       # after those of sphinx-exercise
    formats = ("html",)

    def run(self):
        for exercise in self.document.findall(exercise_enumerable_node):
            self.unbracket(exercise[0], 0)
        for solution in self.document.findall(solution_node):
            said, link = solution[0]
            solution[0][0] = nodes.Text(f"{said} ")         # the space, out of the link
            link[0] = nodes.Text(link[0].lstrip())
            self.unbracket(link, 1)
        for output in self.document.findall(nodes.literal_block):
            lines = output.astext().splitlines()
            if "stream" in output["classes"] and all(map(SENTENCE.match, lines)):
                output["classes"].append("prose")

    @staticmethod
    def unbracket(title, at):
        if title[at:] and (title[at], title[-1]) == (" (", ")"):
            title[at] = nodes.Text(" · "[not at:])
            title.pop()


def link_docstring(app, what, name, obj, options, lines):
    """Shapes from annotations, the second paragraph; examples as code; names of files and equations as links."""
    first, *rest = "\n".join(lines).split("\n\n")
    if rest and "-> " in rest[0]:       # no line breaks in the middle of a shape
        rest[0] = from_annotations(obj, rest[0])
        shapes = re.sub(r"\([^()]{1,24}\)", lambda shape: re.sub(r"\s+", "\N{NO-BREAK SPACE}", shape[0]), rest[0])
        rest[0] = "``" + re.sub(r"[ \n]+", " ", shapes.strip()) + "``"
    done = []
    for line in "\n\n".join([first, *rest]).split("\n"):
        if "`" not in line and not line.startswith(" "):
            line = re.sub(r'([*"]|\.(?=\.\.))', r"\\\1", line)     # no emphasis, ellipsis or curly quotes
        if line.startswith("Derived in "):
            done.append("")
        if line.startswith("    ") and done[-1:] == [""]:
            done += ["::", ""]                  # indented: an example in code
        line = DERIVED_IN.sub(r":doc:`/chapters/\1`", line)
        done.append(LABEL.sub(r":eq:`eq:\1`", line))
    lines[:] = done


def from_annotations(obj, line):
    """The line of shapes with all arguments of a formula as their annotations have them."""
    from attnmath._given.arguments import line_of_shapes

    after = line.partition("->")[2]
    if not hasattr(obj, "__wrapped__") or obj.__module__.endswith(".masks"):    # whose lines say more than shapes
        return line
    return f"{line_of_shapes(obj)} -> {after}"


def copy_files(app, error):
    """MathJax, and the files of `_static`, which Sphinx leaves as they were when no text has changed."""
    if error or app.builder.format != "html":
        return
    shutil.copytree(HERE.parent / "_static", Path(app.outdir, "_static"), dirs_exist_ok=True)
    files = importlib.metadata.files("sphinx-mathjax-offline")
    for name in MATHJAX:
        source = next(f for f in files if f.as_posix().endswith(f"static/mathjax/{name}")).locate()
        target = Path(app.outdir, "_static", "mathjax", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def add_static(app):
    app.config.html_static_path.append(str(HERE.parent / "_static"))


def drop_thebe(app, pagename, templatename, context, doctree):
    """sphinx-thebe puts its address on every page, twice; this book has no live cells."""
    def wanted(script):
        body = script.attributes.get("body") or ""
        return "thebe" not in str(script.filename).lower() and "thebe" not in body.lower()

    context["script_files"] = [s for s in context["script_files"] if wanted(s)]


def mend_roles(app, pagename, templatename, context, doctree):
    """Entries of a list have the role of one; docutils gives them a role that ARIA has given up."""
    if "doc-biblioentry" in context.get("body", ""):
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def nest_modules(app, pagename, templatename, context, doctree):
    """In the overview of the modules, a list within a list stands within an entry; Sphinx puts it beside them."""
    if pagename == "_modules/index":
        body, end, after = context["body"].rpartition("</ul>")
        context["body"] = body.replace("</li>\n<ul>", "\n<ul>").replace("</ul>", "</ul></li>") + end + after


def note_explorer(app, docname, source):
    if EXPLORER in source[0]:
        app.env.note_dependency(str(HERE / "explorer.html"))


def add_explorer(app, pagename, templatename, context, doctree):
    """The picture, matrices and controls, in the place that a chapter keeps for them."""
    if EXPLORER not in context.get("body", ""):
        return
    context["body"] = context["body"].replace(EXPLORER, (HERE / "explorer.html").read_text("utf-8"))
    context["meta"] = {**(context.get("meta") or {}), "html_theme.sidebar_secondary.remove": True}
    app.add_css_file("explorer.css")
    for script in ("explorer_math.js", "explorer.js"):
        app.add_js_file(script, loading_method="defer")


def add_buttons(app, pagename, templatename, context, doctree):
    """Links to the repository, where its address is known."""
    repository = os.environ.get("BOOK_REPOSITORY", "").rstrip("/")
    if not repository or doctree is None:
        return
    branch = os.environ.get("BOOK_BRANCH", "main")
    host, slug = "/".join(repository.split("/")[:3]), "/".join(repository.split("/")[3:5])

    def link(label, icon, text, url):
        return {"type": "link", "label": label, "icon": icon, "text": text, "tooltip": text,
                "url": url}

    text = f"{pagename}.md"
    buttons = [link("repository", "fab fa-github", "Repository", repository)]
    if Path(app.srcdir, text).exists():
        buttons.append(link("edit", "fas fa-pencil-alt", "Edit this page",
                            f"{repository}/edit/{branch}/{text}"))
    if host == "https://github.com" and Path(app.srcdir, f"{pagename}.ipynb").exists():
        buttons += [
            link("colab", "fas fa-play", "Open in Colab", "https://colab.research.google.com/github/"
                 f"{slug}/blob/colab/{Path(pagename).name}.ipynb"),
            link("binder", "fas fa-rocket", "Open in Binder", "https://mybinder.org/v2/gh/"
                 f"{slug}/{branch}?urlpath=lab/tree/{pagename}.ipynb")]
    context["header_buttons"].append({
        "type": "group", "label": "repository-buttons", "icon": "fab fa-github",
        "tooltip": "Repository, Colab, Binder", "buttons": buttons})


def setup(app):
    app.add_transform(CountDisplays)
    app.add_transform(LinkEquations)
    app.add_post_transform(MendTitles)
    app.add_post_transform(KeepTogether)
    app.connect("builder-inited", add_static)
    app.connect("source-read", read_text)
    app.connect("env-check-consistency", compare_numbers)
    app.connect("doctree-resolved", link_listings)
    app.connect("autodoc-process-docstring", link_docstring)
    app.connect("html-page-context", add_buttons, priority=600)   # after the theme's own buttons
    app.connect("html-page-context", mend_roles)
    app.connect("html-page-context", nest_modules)
    app.connect("source-read", note_explorer)
    app.connect("html-page-context", add_explorer)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("build-finished", copy_files)
    app.add_css_file("book.css")
    app.add_js_file("book.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
