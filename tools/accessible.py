"""Open every built page as a reader has it, from its file, and let axe-core judge it.

    python tools/accessible.py _build/html

Light, dark and phone width. Fails on a violation of WCAG level A or AA, a request that leaves
the disk, a message on the console, a formula that was not set, or a page wider than the window.
The page that moves is moved as well, see `moves.py`. `chromium.py` says where Chromium comes from.
"""

import argparse
import itertools
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import axe_playwright_python
import chromium
import moves
from playwright.sync_api import sync_playwright

VIEWS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
FLAGS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run", "--no-default-browser-check"]
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"


def pages(folder):
    return [p for p in sorted(folder.rglob("*.html")) if "_static" not in p.parts and (
        'http-equiv="Refresh"' not in p.read_text("utf-8"))]


def listen(page):
    """A list that fills with what a page says and asks for, and should not."""
    heard = []

    def console(message):
        if message.type in ("error", "warning"):
            heard.append(f"console: {message.text}")

    def request(sent):
        if not sent.url.startswith(("file:", "data:", "blob:")):
            heard.append(f"leaves the disk: {sent.url}")

    page.on("console", console)
    page.on("request", request)
    page.on("pageerror", lambda error: heard.append(f"script: {error}"))
    page.on("requestfailed", lambda sent: heard.append(f"not loaded: {sent.url}"))
    return heard


def judge(page, path, heard, contrast=True):
    """Every complaint about one page in one view."""
    heard.clear()
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    page.evaluate("() => window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => 0) : 0")
    page.wait_for_timeout(50)
    yield from heard
    width, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width > window:
        yield f"the page is {width} wide in a window of {window}"
    formulas, drawn, spoken, errors = page.evaluate(
        "['span.math, div.math', 'mjx-container', 'mjx-assistive-mml', '[data-mjx-error], mjx-merror']"
        ".map(s => document.querySelectorAll(s).length)")
    if drawn < formulas or spoken != drawn or errors:
        yield f"{formulas} formulas, {drawn} set, {spoken} with MathML, {errors} with errors"
    page.add_script_tag(path=AXE)
    # It need not tell where everything stands that is right, nor load the style sheets, which a browser
    # refuses from the disk. Contrast takes most of the time, and the colours of a width are those of any.
    result = page.evaluate(
        "([tags, contrast]) => axe.run({runOnly: {type: 'tag', values: tags}, resultTypes: ['violations'], "
        "preload: false, rules: {'color-contrast': {enabled: contrast}}})", [LEVELS, contrast])
    for violation in result["violations"]:
        for node in violation["nodes"]:
            why = node["failureSummary"].replace("\n", " ")
            yield f"{violation['id']}: {node['target'][0]} {why}"


@contextmanager
def browser():
    with sync_playwright() as tools:
        one = tools.chromium.launch(executable_path=chromium.found(), args=FLAGS, chromium_sandbox=False)
        yield one
        one.close()


def look(folder, files, pictures):
    """Every complaint about these pages, each in one view: (page, view, what is wrong)."""
    found = []
    with browser() as one:
        for view, options in VIEWS.items():
            page = one.new_page(**options)
            heard = listen(page)
            for path in (path for path, wanted in files if wanted == view):
                name = path.relative_to(folder).as_posix()
                contrast = view != "phone" or name == moves.PAGE
                found += [(name, view, complaint) for complaint in judge(page, path, heard, contrast)]
                if pictures:
                    page.screenshot(path=pictures / f"{path.stem}-{view}.png", full_page=True)
            page.close()
    return found


def move(folder):
    """Every complaint about the page that moves, in all views, and about its judge, who has to find slips."""
    found = []
    with browser() as one:
        for view, options in VIEWS.items():
            page = one.new_page(**options)
            heard = listen(page)
            complaints = list(moves.judge(page, (folder / moves.PAGE).as_uri(), view))
            found += [(moves.PAGE, view, complaint) for complaint in complaints + heard]
            page.close()

        @contextmanager
        def page_of():
            page = one.new_page(**VIEWS["phone"])
            yield page
            page.close()

        found += [(moves.PAGE, "slip", complaint) for complaint in moves.unnoticed(page_of, folder)]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=Path, help="a folder for one picture of each page and view")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="browsers side by side")
    args = parser.parse_args()
    folder = args.folder.resolve()
    files = pages(folder)
    if not files:
        sys.exit(f"There is no page in {folder}")
    chromium.ensured()
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    work = sorted(itertools.product(files, VIEWS), key=lambda one: -one[0].stat().st_size)
    found = []
    with ProcessPoolExecutor(args.jobs) as pool:     # every browser has as many long pages, a few of them
        parts = [work[first::4 * args.jobs] for first in range(4 * args.jobs)]
        moved = [pool.submit(move, folder)] if folder / moves.PAGE in files else []
        for part in moved + [pool.submit(look, folder, part, args.pictures) for part in parts if part]:
            found += part.result()
    for name, view, complaint in sorted(found):
        print(f"{name} ({view}): {complaint}")
    print(f"{len(files)} pages, {len(VIEWS)} views each: {len(found)} complaints")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
