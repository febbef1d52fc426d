"""The page that moves, moved: every control by its key, every point by mouse and by finger.

What stands in the tables and in the picture is compared with attnmath. The settings are followed
here, from what the sliders say, so that a slip of the page's own bookkeeping is seen as well.
Before that, slips are planted into copies of the page's scripts, each of which has to be found.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np

from attnmath import attention_map, attention_vjp

PAGE = "chapters/explorer.html"
LETTERS = ("Q", "K", "V", "dO", "A", "P", "O", "dP", "D", "dA", "dQ", "dK", "dV")
SLIPS = {      # script: what stands in it, and what a careless author might have written
    "explorer_math.js": [
        ("(dP[i][j] - D[i][0])", "dP[i][j]"),
        ("scaled(gamma, times(T(dA), Q))", "times(T(dA), Q)"),
    ],
    "explorer.js": [
        ("lines.forEach((line, row)", "lines.toReversed().forEach((line, row)"),
        ("K: (i, j, axis) => 2 * j + axis", "K: (i, j, axis) => 2 * i + axis"),
        ("weight > 0 ? sign(reach[key]) : 0", "weight > 0 ? -sign(reach[key]) : 0"),
        ("const r = radius(weight)", "const r = radius(1 - weight)"),
        ("160 - 50 * y", "160 + 50 * y"),
        ("Number(input.checked)", "1"),
        ("event.clientX - frame.left) * unit - 160", "event.clientX - frame.left) - 160"),
        ("{ passive: false }", "{ passive: true }"),
        ('aria-valuetext", words', 'aria-valuetext", ""'),
        ("clearTimeout(later);", ""),
    ],
}
STROKES = {"plus": "M-5 0H5M0 -5V5", "minus": "M-5 0H5", "none": "M-4 -4L4 4M-4 4L4 -4"}
CONTROLS = ".explorer :is(input[type=range], input[type=checkbox], button)"


class Model:
    """What the page ought to show, computed by the package from the settings."""

    def __init__(self, K, V, Q, angle, length):
        self.i, self.j, self.t = 0, 0, 0.0
        self.K, self.V, self.Q, self.angle, self.length = K, V, Q, angle, length
        self.B, self.read = np.zeros((3, 4)), np.ones((3, 4), dtype=bool)

    def tables(self):
        turn = np.radians(self.angle)
        dO = np.stack([np.cos(turn), np.sin(turn)], 1) * self.length[:, None]
        B, gamma = np.where(self.read, self.B, -np.inf), 2.0**-self.t
        A, P, _, O = attention_map(self.Q, self.K, self.V, B, gamma)
        dQ, dK, dV, dA, _ = attention_vjp(dO, self.Q, self.K, self.V, B, gamma)
        D = (dO * O).sum(1, keepdims=True)
        found = (self.Q, self.K, self.V, dO, A, P, O, dO @ self.V.T, D, dA, dQ, dK, dV)
        return dict(zip(LETTERS, found, strict=True))

    def set(self, letter, axis, value):
        place = {"t": None, "angle": self.i, "length": self.i, "B": (self.i, self.j)}.get(letter, (self.j, axis))
        if place is None:
            self.t = value
        else:
            getattr(self, letter)[place] = value


READ = """() => {
  const box = document.querySelector(".explorer");
  const numbers = (element) => element.getAttribute("transform").match(/-?\\d[\\d.]*(e-?\\d+)?/g).map(Number);
  const number = (text) => text.replaceAll("−", "-").replace("∞", "Infinity");
  const tables = {};
  for (const table of box.querySelectorAll("table[data-letter]")) {
    tables[table.dataset.letter] = [...table.tBodies[0].rows].map(
      (row) => [...row.cells].slice(1).map((cell) => number(cell.textContent)));
  }
  const points = (pad) => [...box.querySelectorAll(`${pad} .ex-point`)].map((point) => ({
    at: numbers(point), r: Number(point.firstChild.getAttribute("r")), name: point.getAttribute("class"),
    colour: getComputedStyle(point.querySelector(".ex-disc")).fill,
    path: point.querySelector(".ex-sign").getAttribute("d") }));
  return { tables, values: points("#ex-values"), keys: points("#ex-keys"),
    output: numbers(box.querySelector(".ex-output")), tip: numbers(box.querySelector("path.ex-do")),
    line: number(box.querySelector("#ex-line").textContent) };
}"""


def units(shown):
    """The last digit that a number is shown with."""
    return 10.0 ** -len(shown.partition(".")[2]) if "." in shown else 1.0


def differences(page, model):
    """What the page shows and should not."""
    shown, right = page.evaluate(READ), model.tables()
    i, j = model.i, model.j
    for letter in LETTERS:
        table = shown["tables"].get(letter, [])
        if np.shape(table) != right[letter].shape:
            yield f"{letter} is shown as a table of {np.shape(table)}, not {right[letter].shape}"
            continue
        for place, x in np.ndenumerate(right[letter]):
            text = table[place[0]][place[1]]
            y = float(text)
            # Rounded to what is shown; a 0 without digits says exactly zero, but for the last bit.
            off = 1e-13 if text == "0" else 0.500001 * units(text)
            if y != x and not abs(y - x) <= off:
                yield f"{letter}[{place[0]}, {place[1]}] is shown as {text}, attnmath has {x:.6g}"
    P, O, dA, dO = right["P"][i], right["O"][i], right["dA"][i], right["dO"][i]
    for name, points, at in (("v", shown["values"], model.V), ("k", shown["keys"], model.K)):
        for key, point in enumerate(points):
            where = f"{name}{key + 1}"
            if np.abs(np.array(point["at"]) - pixel(at[key])).max() > 0.01:
                yield f"{where} is drawn at {point['at']}"
            if abs(point["r"] ** 2 - (36 + 448 * P[key])) > 0.01:
                yield f"{where} has the radius {point['r']}, its weight is {P[key]:.3f}"
            told = next((sign for sign in STROKES if f"ex-{sign}" in point["name"]), "")
            wanted = "none" if dA[key] == 0 else "plus" if dA[key] > 0 else "minus"
            clear = abs(dA[key]) > 1e-11 or P[key] == 0     # a sign that rounding cannot turn
            if clear and (told != wanted or point["path"] != STROKES[told]):
                yield f"{where} is marked {told} ({point['path']}), dA is {dA[key]:.3g}"
            if ("ex-chosen" in point["name"]) != (key == j):
                yield f"{where} looks {'chosen' if key != j else 'not chosen'}"
    looks = {(one["path"], one["colour"]) for one in shown["values"] + shown["keys"]}
    if not len(looks) == len({path for path, _ in looks}) == len({colour for _, colour in looks}):
        yield f"marks and colours do not go together: {sorted(looks)}"
    for name, found, at in (("the output", shown["output"], O), ("the arrow's tip", shown["tip"], O + dO)):
        if np.abs(np.array(found[:2]) - pixel(at)).max() > 0.01:
            yield f"{name} is drawn at {found[:2]}, not at {pixel(at)}"
    if abs(float(shown["line"].rpartition("=")[2]) - dA[j]) > 0.0051:
        yield f"the line says {shown['line']}, dA is {dA[j]:.3g}"


def pixel(at):
    return np.array([160 + 50 * at[0], 160 - 50 * at[1]])


def opened(page, address):
    """The page, and its model, read from what it shows at first."""
    page.goto(address)
    page.wait_for_selector(".explorer:not([hidden])")
    tables = page.evaluate(READ)["tables"]
    model = Model(*(np.array(tables[letter], dtype=float) for letter in "KVQ"), np.zeros(3), np.zeros(3))
    for query in (3, 2, 1):
        choose(page, model, "i", query)
        model.angle[query - 1] = float(page.locator("#ex-angle").input_value())
        model.length[query - 1] = float(page.locator("#ex-length").input_value())
    choose(page, model, "j", 2)
    model.t = float(page.locator("#ex-t").input_value())
    return model


def choose(page, model, name, number):
    """By the keyboard: the one that is checked has the focus, and arrows go on from there."""
    for _ in range(4):
        now = page.locator(f"input[name=ex-{name}]:checked")
        if now.input_value() == str(number):
            break
        now.focus()
        page.keyboard.press("ArrowRight")
    setattr(model, name, number - 1)


def by_keys(page, model):
    """Each slider, box and button, for each query and key."""
    reached = {}
    for at, covered in tabbed(page):
        reached[at] = reached.get(at, False) or covered
    every = page.locator(CONTROLS)
    controls = every.evaluate_all("all => all.map((x, n) => ({n, type: x.type, ...x.dataset, id: x.id || n}))")
    yield from (f"Tab does not reach #{one['id']}" for one in controls if one["n"] not in reached)
    yield from (f"#{one['id']} has the focus and is covered" for one in controls if reached.get(one["n"]))
    sliders = [one for one in controls if one["type"] == "range"]
    boxes = [one for one in controls if one["type"] == "checkbox"]
    for step, key in enumerate(("ArrowRight", "PageDown", "ArrowLeft", "PageUp", "End", "Home", "PageUp")):
        choose(page, model, "i", step % 3 + 1)
        choose(page, model, "j", step % 4 + 1)
        for one in sliders:
            slider = every.nth(one["n"])
            before, texts = float(slider.input_value()), page.locator(".ex-matrices").inner_text()
            slider.press(key)
            value = float(slider.input_value())
            if value == before and key not in ("End", "Home"):
                yield f"{key} does not move #{one['id']}"
            model.set(one["letter"], int(one.get("axis", 0)), value)
            if slider.get_attribute("aria-valuetext") in (None, ""):
                yield f"#{one['id']} does not say its value"
            answered = page.locator(".ex-matrices").inner_text() != texts
            if answered and not page.locator(".ex-matrices .ex-moved").count():
                yield f"nothing that #{one['id']} moves is marked"
            yield from (f"#{one['id']} after {key}: {what}" for what in differences(page, model))
    for one in boxes + boxes:       # until nothing is allowed, and back
        every.nth(one["n"]).press("Space")
        model.read.flat[int(one["place"])] ^= True
        yield from (f"mask {one['place']}: {what}" for what in differences(page, model))


def tabbed(page):
    """The controls on which the Tab key stops, there and back, and whether something lies over them then."""
    page.evaluate("document.activeElement.blur(); getSelection().collapse(document.querySelector('.explorer'), 0)")
    for key in ["Tab"] * 40 + ["Shift+Tab"] * 40:
        page.keyboard.press(key)
        page.wait_for_timeout(10)
        at, covered = page.evaluate("""(controls) => {
          const all = [...document.querySelectorAll(controls)];
          const [at, box] = [document.activeElement, document.activeElement.getBoundingClientRect()];
          const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
          return [all.indexOf(at), !top || !(at.contains(top) || top.contains(at) && top.tagName === "LABEL")];
        }""", CONTROLS)
        if at >= 0:
            yield at, covered


def by_hand(page, model, finger):
    """Each point and the arrow, dragged; the page itself stays where it is."""
    choose(page, model, "i", 1)
    for pad, letter in (("#ex-values", "V"), ("#ex-keys", "K")):
        for key in range(4):
            goal = getattr(model, letter)[key] * 0.5 + [0.35, -0.25]
            start = page.locator(f"{pad} .ex-point").nth(key)
            yield from dragged(page, model, finger, pad, start, goal, (letter, key))
    tip, goal = page.locator("path.ex-do"), model.tables()["O"][0] + [-0.6, 0.8]
    yield from dragged(page, model, finger, "#ex-values", tip, goal, ("do", 0))


def dragged(page, model, finger, pad, start, goal, what):
    frame = page.locator(pad)
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    scale = box["width"] / 320
    numbers = [float(x) for x in start.get_attribute("transform").split("(")[1].split(")")[0].split()]
    begin = [box["x"] + numbers[0] * scale, box["y"] + numbers[1] * scale]
    end = [box["x"] + pixel(goal)[0] * scale, box["y"] + pixel(goal)[1] * scale]
    top = page.evaluate("scrollY")
    path = [np.array(begin) + (np.array(end) - begin) * part for part in (0.3, 0.7, 1)]
    if finger:
        touch = page.context.new_cdp_session(page)

        def send(kind, *points):
            at = [{"x": x, "y": y} for x, y in points]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

        send("touchStart", begin)
        for at in path:
            send("touchMove", tuple(map(float, at)))
        send("touchEnd")
        page.wait_for_timeout(30)
    else:
        page.mouse.move(*begin)
        page.mouse.down()
        for at in path:
            page.mouse.move(*at)
        page.mouse.up()
    letter, key = what
    if letter == "do":
        found = [float(page.locator(f"#ex-{name}").input_value()) for name in ("angle", "length")]
        model.angle[0], model.length[0] = found
        wanted, off = (np.degrees(np.arctan2(0.8, -0.6)), 1.0), (2.51 + 2, 0.051 + 0.03)   # a step, and a pixel
    else:
        model.j = key
        found = [float(page.locator(f"#ex-{letter}{axis}").input_value()) for axis in (0, 1)]
        getattr(model, letter)[key] = found
        wanted, off = goal, (0.026 + 0.03, 0.026 + 0.03)
    if not (np.abs(np.subtract(found, wanted)) <= off).all():
        yield f"{letter}{key + 1} was dragged to {np.round(wanted, 2)} and is at {found}"
    if page.evaluate("scrollY") != top:
        yield f"the page scrolls while {letter}{key + 1} is dragged"
    yield from (f"dragging {letter}{key + 1}: {what}" for what in differences(page, model))


def in_words(page, model):
    """The status speaks once for many ticks; the address brings the settings back; the buttons do as they say."""
    page.evaluate("""() => {
      window.said = 0;
      const count = new MutationObserver(() => { window.said += 1; });
      count.observe(document.querySelector(".ex-status"), {childList: true});
    }""")
    choose(page, model, "j", 3)
    page.locator("#ex-K1").evaluate("""(slider) => {
      window.said = 0;      // what was still to be said of an earlier move is not said any more
      for (let tick = 0; tick < 5; tick++) {
        slider.stepDown();
        slider.dispatchEvent(new Event("input"));
      }
    }""")
    model.K[2, 1] = float(page.locator("#ex-K1").input_value())
    page.wait_for_function("said > 0")
    page.wait_for_timeout(300)
    if page.evaluate("said") != 1:
        yield f"five ticks of a slider are announced {page.evaluate('said')} times"
    words = page.locator(".ex-status").inner_text()
    if "dK" not in words or "V" not in words.partition("Unmoved")[2]:
        yield f"the status says {words!r}"
    page.reload()
    page.wait_for_selector(".explorer:not([hidden])")
    yield from (f"from its address: {what}" for what in differences(page, model))
    for name, told in (("sure", np.array([1, 1, 1])), ("equal", None), ("empty", np.array([0, 1, 1]))):
        page.locator(f"[data-preset={name}]").press("Enter")
        shown = {letter: np.array(x, dtype=float) for letter, x in page.evaluate(READ)["tables"].items()}
        if name == "sure" and not (shown["P"].max(1) > 0.95).all():
            yield f"a sure head has the weights {shown['P']}"
        if name == "equal" and not (shown["V"][0] == shown["V"][1]).all():
            yield f"two equal values are {shown['V'][:2]}"
        if told is not None and (abs(shown["P"].sum(1) - told) > 0.03).any():
            yield f"{name}: the weights have the sums {shown['P'].sum(1)}"
        if name == "empty" and (shown["A"][0] != -np.inf).any() | shown["dQ"][0].any() | shown["O"][0].any():
            yield "an empty row passes something on"


def judge(page, address, view):
    """Every complaint about the page in one view, moved by all means."""
    page.emulate_media(reduced_motion="reduce")       # what has the focus is scrolled to at once
    model = opened(page, address)
    yield from differences(page, model)
    yield from by_hand(page, model, finger=view == "phone")
    yield from in_words(page, model)
    page.goto("about:blank")
    model = opened(page, address)
    yield from by_keys(page, model)


def unnoticed(page_of, folder):
    """The slips that nobody finds, planted one at a time; and those for which there is no place any more."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "html"
        (copy / "chapters").mkdir(parents=True)
        shutil.copy(folder / PAGE, copy / PAGE)
        shutil.copytree(folder / "_static", copy / "_static")
        for script, slips in SLIPS.items():
            source = (folder / "_static" / script).read_text("utf-8")
            for old, new in slips:
                if source.count(old) != 1:
                    yield f"a slip has no place in {script}: {old}"
                    continue
                (copy / "_static" / script).write_text(source.replace(old, new), "utf-8")
                with page_of() as page:
                    if next(judge(page, (copy / PAGE).as_uri(), "phone"), None) is None:
                        yield f"a planted slip goes unnoticed in {script}: {new or 'without ' + old}"
            (copy / "_static" / script).write_text(source, "utf-8")
