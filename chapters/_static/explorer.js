// The page that moves: the picture, the matrices and the controls around what explorer_math.js computes.
(() => {
  const box = document.querySelector(".explorer");
  if (!box) return;
  const { head, matrices, along, sign, radius } = explorerMath;
  const find = (selector) => box.querySelector(selector);
  const all = (selector) => [...box.querySelectorAll(selector)];
  const [n, m] = [3, 4];

  // ---- the settings: rows of numbers, each within its limits ------------------------------------

  const START = {
    i: [1], j: [2], t: [0.5],
    Q: [1.4, 0.6, -0.6, 1.3, -0.9, -1.2],
    K: [1.5, 0.9, 0.2, 1.8, -1.6, 0.4, 0.6, -1.5],
    V: [1.8, 1.1, -0.9, 1.7, -1.7, -1.0, 0.9, -1.6],
    angle: [35, 120, -100], length: [1, 0.8, 1.2],
    B: Array(n * m).fill(0), read: Array(n * m).fill(1),
  };
  const LIMITS = { i: [1, n], j: [1, m], t: [-6, 3], K: [-3, 3], V: [-3, 3], angle: [-180, 180], length: [0, 2],
    B: [-8, 8], read: [0, 1] };
  const PRESETS = {
    start: [{}, ""],
    sure: [{ t: [-4] }, "A sure head: each row has one weight near one, and so hardly a slope. dQ and dK fade; dV does not."],
    equal: [{ V: START.V.map((x, place) => START.V[place > 1 && place < 4 ? place - 2 : place]) },
      "Two equal values: between the first two keys weight may move as it likes, the output stays. Their dA are in proportion to their weights."],
    empty: [{ read: START.read.map((_, place) => Number(place >= m)) },
      "An empty row: query 1 may look nowhere. Its weights, its output, its dA and its dQ are zero, not a quotient of zeros."],
  };
  let state = structuredClone(START);

  const place = { t: () => 0, angle: (i) => i, length: (i) => i, B: (i, j) => m * i + j,
    K: (i, j, axis) => 2 * j + axis, V: (i, j, axis) => 2 * j + axis };
  const slot = (letter, axis) => place[letter](state.i[0] - 1, state.j[0] - 1, Number(axis));

  // ---- numbers in words, and the tables ----------------------------------------------------------

  const below = (number) => String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);
  function shown(x) {
    if (x === 0) return "0";
    if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
    const digits = x.toFixed(Math.abs(x) < 9.995 ? 2 : Math.abs(x) < 99.95 ? 1 : 0);
    return digits === "-0.00" ? "0.00" : digits.replace("-", "−");
  }
  const COLUMNS = [["Q", "dQ"], ["K", "dK"], ["A", "dA"], ["P", "dP"], ["V", "dV"], ["O", "dO"], [null, "D"]];
  const WIDTH = { A: m, P: m, dA: m, dP: m, D: 1 };
  const HEIGHT = { K: m, V: m, dK: m, dV: m };
  const cells = {};

  function table(letter) {
    const [height, width] = [HEIGHT[letter] || n, WIDTH[letter] || 2];
    const made = document.createElement("table");
    made.dataset.letter = letter;
    made.createCaption().innerHTML = `<i>${letter}</i> <span>${height} × ${width}</span>`;
    cells[letter] = Array.from({ length: height }, (_, row) => {
      const line = made.insertRow();
      const name = document.createElement("th");
      name.scope = "row";
      name.textContent = `${HEIGHT[letter] ? "key" : "query"} ${row + 1}`;
      line.append(name);
      return Array.from({ length: width }, () => line.insertCell());
    });
    return made;
  }
  for (const pair of COLUMNS) {
    const unit = document.createElement("div");
    for (const letter of pair) unit.append(letter ? table(letter) : document.createElement("div"));
    find(".ex-matrices").append(unit);
  }

  const mask = find(".ex-mask");
  const titles = mask.createTHead().insertRow();
  for (const title of ["", ...Array.from({ length: m }, (_, j) => `key ${j + 1}`)]) {
    const cell = document.createElement(title ? "th" : "td");
    if (title) cell.scope = "col";
    cell.textContent = title;
    titles.append(cell);
  }
  const body = mask.createTBody();
  for (let i = 0; i < n; i++) {
    const line = body.insertRow();
    line.innerHTML = `<th scope="row">query ${i + 1}</th>`;
    for (let j = 0; j < m; j++) {
      line.insertCell().innerHTML =
        `<label><input type="checkbox" data-place="${m * i + j}" aria-label="query ${i + 1} may read key ${j + 1}"></label>`;
    }
  }

  // ---- the picture ---------------------------------------------------------------------------------

  const X = (x) => 160 + 50 * x;
  const Y = (y) => 160 - 50 * y;
  const values = find("#ex-values");
  const keys = find("#ex-keys");
  const put = (element, attributes) => {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  };
  function draw(parent, kind, name = "") {
    const element = document.createElementNS(values.namespaceURI, kind);
    element.setAttribute("class", name);
    parent.append(element);
    return element;
  }
  function point(svg) {
    const group = draw(svg.querySelector(".ex-points"), "g", "ex-point");
    return { group, disc: draw(group, "circle", "ex-disc"), mark: draw(group, "path", "ex-sign"), name: draw(group, "text", "ex-name") };
  }
  const line = (from, to) => ({ x1: X(from[0]), y1: Y(from[1]), x2: X(to[0]), y2: Y(to[1]) });
  const ticks = Array.from({ length: m }, () => draw(values.querySelector(".ex-stems"), "line", "ex-stem"));
  const seen = Array.from({ length: m }, () => point(values));
  const offered = Array.from({ length: m }, () => point(keys));
  const asked = Array.from({ length: n }, () => shaft(keys.querySelector(".ex-queries"), "ex-query"));
  const moves = Array.from({ length: m }, () => shaft(keys.querySelector(".ex-steps"), "ex-step"));
  const wish = { shaft: values.querySelector("line.ex-do"), tip: values.querySelector("path.ex-do") };

  function shaft(parent, name) {
    return { shaft: draw(parent, "line", `ex-arrow ${name}`), tip: draw(parent, "path", `ex-head ${name}`) };
  }
  function pointArrow({ shaft, tip }, from, to, size) {
    put(shaft, line(from, to));
    const long = Math.hypot(to[0] - from[0], to[1] - from[1]);
    const turned = (Math.atan2(from[1] - to[1], to[0] - from[0]) * 180) / Math.PI;
    put(tip, { d: `M0 0L${-size} ${-size / 2}L${-size} ${size / 2}Z`, transform: `translate(${X(to[0])} ${Y(to[1])}) rotate(${turned})`,
      visibility: long > 0.04 ? "visible" : "hidden" });
  }
  const SIGNS = { 1: ["plus", "M-5 0H5M0 -5V5", "+"], "-1": ["minus", "M-5 0H5", "−"], 0: ["none", "M-4 -4L4 4M-4 4L4 -4", "×"] };
  function showPoint({ group, disc, mark, name }, letter, j, places, weight, slope, line) {
    const at = places[j];
    const crowd = places.slice(0, j).filter((other) => Math.hypot(other[0] - at[0], other[1] - at[1]) < 0.25).length;
    const [kind, path] = SIGNS[slope];
    put(group, { class: `ex-point ex-${kind}${j === state.j[0] - 1 ? " ex-chosen" : ""}`, transform: `translate(${X(at[0])} ${Y(at[1])})` });
    const r = radius(weight);
    put(disc, { r });
    put(mark, { d: path });
    const left = at[0] > 2.2 || (at[0] > -2.2 && line[0] > at[0]); // not on the line that leaves the point
    put(name, { x: left ? -r - 4 : r + 4, y: (at[1] > 2.6 ? 14 : -4) + 18 * crowd, "text-anchor": left ? "end" : "start" });
    name.textContent = letter + below(j + 1);
  }

  function picture(x, y) {
    const [i, j] = [state.i[0] - 1, state.j[0] - 1];
    const [o, d, q] = [y.O[i], x.dO[i], x.Q[i]];
    const reach = along(x.dO, x.V, y.O)[i];
    const slopes = y.P[i].map((weight, key) => (weight > 0 ? sign(reach[key]) : 0));
    const asks = state.length[i] > 0;
    const turn = `translate(${X(o[0])} ${Y(o[1])}) rotate(${-state.angle[i]})`;
    put(values.querySelector(".ex-half"), { transform: turn, visibility: asks ? "visible" : "hidden" });
    put(values.querySelector(".ex-border"), { transform: turn, visibility: asks ? "visible" : "hidden" });
    put(values.querySelector(".ex-output"), { transform: `translate(${X(o[0])} ${Y(o[1])}) rotate(45)` });
    const end = [o[0] + d[0], o[1] + d[1]];
    pointArrow(wish, o, end, 13);
    const before = d[0] < 0 || end[0] > 2.4;
    const named = { x: X(end[0]) + (before ? -8 : 8), y: Math.max(18, Y(end[1]) + (d[1] < 0 ? 18 : -6)), "text-anchor": before ? "end" : "start" };
    put(values.querySelector("text.ex-do"), named);
    values.querySelector("text.ex-do").textContent = `do${below(i + 1)}`;
    put(values.querySelector("text.ex-o"), { x: X(o[0]) - 10, y: Y(o[1]) + (d[1] < 0 ? -10 : 20), "text-anchor": "end" });
    values.querySelector("text.ex-o").textContent = `o${below(i + 1)}`;
    for (let key = 0; key < m; key++) {
      const scale = asks ? reach[key] / state.length[i] ** 2 : 0;
      const foot = [x.V[key][0] - scale * d[0], x.V[key][1] - scale * d[1]];
      put(ticks[key], { ...line(foot, x.V[key]), class: `ex-stem ex-${SIGNS[slopes[key]][0]}` });
      const step = y.dK[key].map((entry, axis) => x.K[key][axis] - 3 * entry);
      showPoint(seen[key], "v", key, x.V, y.P[i][key], slopes[key], foot);
      showPoint(offered[key], "k", key, x.K, y.P[i][key], slopes[key], step);
      pointArrow(moves[key], x.K[key], step, 8);
    }
    asked.forEach((one, row) => {
      pointArrow(one, [0, 0], x.Q[row], 12);
      for (const part of Object.values(one)) part.classList.toggle("ex-chosen", row === i);
    });
    put(keys.querySelector(".ex-q"), { x: X(0.45 * q[0]), y: Y(0.45 * q[1]) + (q[0] * q[1] > 0 ? 18 : -8), "text-anchor": q[0] < 0 ? "end" : "start" });
    keys.querySelector(".ex-q").textContent = `q${below(i + 1)}`;
    const words = (letter) => y.P[i].map((weight, key) => `${letter}${key + 1} has the weight ${shown(weight)}, ${SIGNS[slopes[key]][0]}`).join("; ");
    put(values, { "aria-label": `The values as query ${i + 1} sees them: ${words("v")}. The output is at ${o.map(shown).join(", ")}.` });
    put(keys, { "aria-label": `The keys as query ${i + 1} sees them: ${words("k")}.` });
    const pair = below(`${i + 1}${j + 1}`);
    find("#ex-line").textContent = `dA${pair} = P${pair} ⟨do${below(i + 1)}, v${below(j + 1)} − o${below(i + 1)}⟩ = `
      + `${shown(y.P[i][j])} · ${reach[j] < 0 ? `(${shown(reach[j])})` : shown(reach[j])} = ${shown(y.dA[i][j])}`;
  }

  // ---- everything that is shown -----------------------------------------------------------------------

  let gesture = null; // the control that moves, and what stood there before
  let before = {};
  const texts = () => Object.fromEntries(Object.entries(cells).map(([letter, lines]) => [letter, lines.map((line) => line.map((cell) => cell.textContent))]));

  function show() {
    const [i, j] = [state.i[0], state.j[0]];
    const x = matrices(state);
    const y = head(x);
    const answered = new Set();
    for (const [letter, lines] of Object.entries(cells)) {
      const X = x[letter] || y[letter];
      lines.forEach((line, row) => line.forEach((cell, column) => {
        cell.textContent = shown(X[row][column]);
        const moved = gesture !== null && before[letter][row][column] !== cell.textContent;
        if (moved) answered.add(letter);
        cell.classList.toggle("ex-moved", moved);
        const chosen = row === (HEIGHT[letter] ? j : i) - 1 && (WIDTH[letter] !== m || column === j - 1);
        cell.classList.toggle("ex-chosen", chosen);
      }));
    }
    picture(x, y);
    for (const input of all('input[type="range"]')) {
      const letter = input.dataset.letter;
      const number = state[letter][slot(letter, input.dataset.axis)];
      input.value = number;
      const words = letter === "t" ? `${shown(2 ** number)}, scale ${shown(2 ** -number)}` : letter === "angle" ? `${number}°`.replace("-", "−") : shown(number);
      find(`output[for="${input.id}"]`).textContent = words;
      input.setAttribute("aria-valuetext", words);
    }
    for (const input of all('input[type="radio"]')) input.checked = Number(input.value) === state[input.name.slice(3)][0];
    for (const input of all('input[type="checkbox"]')) input.checked = state.read[input.dataset.place] === 1;
    for (const name of all(".ex-key")) name.textContent = below(j);
    for (const name of all(".ex-pair")) name.textContent = `A${below(`${i}${j}`)}`;
    for (const name of all(".ex-do-name")) name.textContent = `do${below(i)}`;
    return answered;
  }

  let later = 0;
  function say(words, answered) {
    clearTimeout(later);
    later = setTimeout(() => {
      const still = Object.keys(cells).filter((letter) => !answered.has(letter));
      find(".ex-status").textContent = words || `Answered: ${[...answered].join(", ") || "nothing"}. Unmoved: ${still.join(", ")}.`;
      remember();
    }, 400);
  }

  function move(control, change, words) {
    if (control !== gesture) [gesture, before] = [control, texts()];
    change();
    say(words, show());
  }

  // ---- the address keeps what differs from the start ------------------------------------------------

  function remember() {
    const changed = Object.keys(LIMITS).filter((name) => String(state[name]) !== String(START[name]));
    const hash = changed.map((name) => `${name}=${state[name].join(",")}`).join("&");
    try {
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    } catch { /* a browser that keeps no such address */ }
  }
  function recall() {
    const found = structuredClone(START);
    for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
      const numbers = text.split(",").map(Number);
      const [low, high] = LIMITS[name] || [1, 0];
      const whole = !["i", "j", "read"].includes(name) || numbers.every(Number.isInteger);
      if (whole && text && numbers.length === START[name]?.length && numbers.every((x) => low <= x && x <= high)) found[name] = numbers;
    }
    state = found;
  }

  // ---- controls ----------------------------------------------------------------------------------------

  for (const input of all('input[type="range"]')) {
    input.addEventListener("input", () => {
      const at = slot(input.dataset.letter, input.dataset.axis);
      move(`${input.dataset.letter}${at}`, () => { state[input.dataset.letter][at] = Number(input.value); });
    });
  }
  for (const input of all('input[type="checkbox"]')) {
    input.addEventListener("change", () => move(`read${input.dataset.place}`, () => { state.read[input.dataset.place] = Number(input.checked); }));
  }
  for (const input of all('input[type="radio"]')) {
    input.addEventListener("change", () => {
      state[input.name.slice(3)] = [Number(input.value)];
      show();
      remember();
    });
  }
  for (const button of all("[data-preset]")) {
    button.addEventListener("click", () => {
      const [changes, words] = PRESETS[button.dataset.preset];
      box.classList.add("ex-glide");
      gesture = null;
      move(button.dataset.preset, () => { state = { ...structuredClone(START), ...structuredClone(changes) }; }, words);
      setTimeout(() => box.classList.remove("ex-glide"), 400);
    });
  }

  // What can be dragged has a slider as well. A touch that begins near a point moves it; elsewhere, the page.
  const near = (number, step, low, high) => Math.min(high, Math.max(low, Math.round(number / step) * step));
  const handles = (svg, letter) => {
    const { dO, V, K } = matrices(state);
    const found = (letter === "V" ? V : K).map((at, j) => ({
      at, j,
      to: (x, y) => {
        state[letter][2 * j] = Math.round(near(x, 0.05, -3, 3) * 20) / 20;
        state[letter][2 * j + 1] = Math.round(near(y, 0.05, -3, 3) * 20) / 20;
      },
      name: `${letter}${j}`,
    }));
    if (letter === "K") return found;
    const i = state.i[0] - 1;
    const [o, d] = [head(matrices(state)).O[i], dO[i]];
    return [{
      at: [o[0] + d[0], o[1] + d[1]],
      to: (x, y) => {
        const length = Math.hypot(x - o[0], y - o[1]);
        state.length[i] = Math.round(near(length, 0.1, 0, 2) * 10) / 10;
        if (length > 0.05) state.angle[i] = near((Math.atan2(y - o[1], x - o[0]) * 180) / Math.PI, 5, -180, 180);
      },
      name: `do${i}`,
    }, ...found];
  };
  for (const [svg, letter] of [[values, "V"], [keys, "K"]]) {
    let held = null;
    const where = (event) => {
      const frame = svg.getBoundingClientRect();
      const unit = 320 / frame.width;
      return [((event.clientX - frame.left) * unit - 160) / 50, (160 - (event.clientY - frame.top) * unit) / 50, (24 * unit) / 50];
    };
    const grasped = (event) => {
      const [x, y, reach] = where(event);
      const far = ({ at }) => Math.hypot(at[0] - x, at[1] - y);
      const closest = handles(svg, letter).sort((a, b) => far(a) - far(b))[0];
      return far(closest) < reach ? closest : null;
    };
    svg.addEventListener("touchstart", (event) => { if (grasped(event.touches[0])) event.preventDefault(); }, { passive: false });
    svg.addEventListener("pointerdown", (event) => {
      held = event.isPrimary ? grasped(event) : null;
      if (!held) return;
      event.preventDefault();
      svg.setPointerCapture(event.pointerId);
      if (held.j !== undefined) state.j = [held.j + 1];
      show();
    });
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = where(event);
      if (held) move(held.name, () => held.to(x, y));
      else svg.style.cursor = grasped(event) ? "grab" : "";
    });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { held = null; });
  }

  addEventListener("hashchange", () => { recall(); gesture = null; show(); });
  recall();
  show();
  box.hidden = false;
})();
