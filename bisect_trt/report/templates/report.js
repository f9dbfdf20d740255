"use strict";
document.documentElement.classList.add("js");
const find = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const make = (name, text, handler) => {
  const element = document.createElement(name);
  element.textContent = text;
  if (handler) { element.type = "button"; element.addEventListener("click", handler); }
  return element;
};

/* The graph: the view is the viewBox; a node that has the focus is the chosen one. */
let chooseNode = () => {};
const drawing = find("#drawing");
if (drawing) {
  const canvas = find("#canvas"), panel = find("#panel"), section = find("#graph");
  const nodes = all(".node", drawing), edges = all(".edges path", drawing);
  const whole = drawing.viewBox.baseVal.width, tall = drawing.viewBox.baseVal.height;
  const byId = new Map(nodes.map((node) => [node.dataset.id, node]));
  const centres = nodes.filter((node) => node.classList.contains("centre"));
  const view = { x: 0, y: 0, scale: 1 };
  const place = (node) => { const m = node.transform.baseVal.getItem(0).matrix; return { x: m.e, y: m.f }; };
  const box = () => ({ w: canvas.clientWidth || 1, h: canvas.clientHeight || 1 });
  const show = () => {
    const { w, h } = box();
    drawing.setAttribute("viewBox", `${view.x} ${view.y} ${w / view.scale} ${h / view.scale}`);
  };
  const centreOn = (point) => {
    const { w, h } = box();
    view.x = point.x - w / view.scale / 2; view.y = point.y - h / view.scale / 2; show();
  };
  const fit = () => {
    const { w, h } = box();
    view.scale = Math.min(w / whole, h / tall, 1.25); centreOn({ x: whole / 2, y: tall / 2 });
  };
  const home = () => {
    view.scale = 1;
    if (!centres.length) { fit(); return; }
    /* No emptier than it has to be: the drawing fills the canvas, or stands in its middle. */
    const { w, h } = box(), at = place(centres[0]);
    const from = (x, room, all) => (all <= room ? (all - room) / 2 : Math.min(Math.max(x - room / 2, 0), all - room));
    view.x = from(at.x, w, whole); view.y = from(at.y, h, tall); show();
  };
  const zoom = (factor, at) => {
    const { w, h } = box(), from = at || { x: w / 2, y: h / 2 };
    const lowest = Math.min(w / whole, h / tall, 1) * 0.8, scale = Math.min(Math.max(view.scale * factor, lowest), 4);
    view.x += from.x / view.scale - from.x / scale; view.y += from.y / view.scale - from.y / scale;
    view.scale = scale; show();
  };
  const offset = (event) => { const r = canvas.getBoundingClientRect(); return { x: event.clientX - r.left, y: event.clientY - r.top }; };

  /* One node can be reached by Tab; arrows go on from it. */
  let chosen = centres[0] || nodes[0];
  const roving = () => nodes.forEach((node) => node.setAttribute("tabindex", node === chosen ? "0" : "-1"));
  const ends = (edge) => edge.dataset.edge.split(" ");
  const choose = (node) => {
    chosen = node; roving();
    nodes.forEach((each) => each.classList.toggle("chosen", each === node));
    edges.forEach((edge) => edge.classList.toggle("lit", ends(edge).includes(node.dataset.id)));
    const copy = document.getElementById(`node-${node.dataset.id}`).cloneNode(true);
    copy.removeAttribute("id");
    panel.replaceChildren(copy); panel.scrollTop = 0;
  };
  const reveal = (node) => {
    const at = place(node), { w, h } = box(), x = (at.x - view.x) * view.scale, y = (at.y - view.y) * view.scale;
    if (x < 90 || y < 40 || x > w - 90 || y > h - 40) centreOn(at);
  };
  const go = (node) => { if (node) { node.focus({ preventScroll: true }); choose(node); reveal(node); } };
  chooseNode = (id) => { const node = byId.get(String(id)); if (node) { go(node); section.scrollIntoView(); } return Boolean(node); };
  const nearest = (candidates, from) => candidates.sort((a, b) => Math.abs(place(a).x - from.x) - Math.abs(place(b).x - from.x))[0];
  const step = (key) => {
    const id = chosen.dataset.id, from = place(chosen);
    if (key === "ArrowUp") return nearest(edges.map(ends).filter((e) => e[1] === id).map((e) => byId.get(e[0])), from);
    if (key === "ArrowDown") return nearest(edges.map(ends).filter((e) => e[0] === id).map((e) => byId.get(e[1])), from);
    const right = key === "ArrowRight";
    return nearest(nodes.filter((n) => place(n).y === from.y && (right ? place(n).x > from.x : place(n).x < from.x)), from);
  };
  nodes.forEach((node) => {
    node.addEventListener("focus", () => { if (node !== chosen || !panel.firstElementChild.matches("article")) choose(node); });
    node.addEventListener("click", (event) => { event.preventDefault(); if (!moved) go(node); });
  });
  const pans = { ArrowUp: [0, -80], ArrowDown: [0, 80], ArrowLeft: [-80, 0], ArrowRight: [80, 0] };
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in pans && event.shiftKey) { view.x += pans[event.key][0] / view.scale; view.y += pans[event.key][1] / view.scale; show(); }
    else if (event.key in pans) go(step(event.key));
    else if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") fit();
    else if (event.key === "Home") { home(); go(centres[0]); }
    else return;
    event.preventDefault();
  });

  /* The wheel zooms once the graph is in use, so that it does not stop whoever scrolls past. */
  const use = (active) => drawing.classList.toggle("active", active);
  document.addEventListener("pointerdown", (event) => use(canvas.contains(event.target)));
  canvas.addEventListener("focusin", () => use(true));
  canvas.addEventListener("focusout", () => use(false));
  canvas.addEventListener("wheel", (event) => {
    if (!drawing.classList.contains("active") && !event.ctrlKey) return;
    event.preventDefault(); zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), offset(event));
  }, { passive: false });
  const fingers = new Map();
  let moved = false;
  const spread = () => { const [a, b] = [...fingers.values()]; return b ? Math.hypot(a.x - b.x, a.y - b.y) : 0; };
  drawing.addEventListener("dragstart", (event) => event.preventDefault());
  drawing.addEventListener("pointerdown", (event) => { if (event.button === 0) { fingers.set(event.pointerId, offset(event)); moved = false; } });
  window.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId), now = offset(event);
    if (!last || (!moved && Math.hypot(now.x - last.x, now.y - last.y) < 4)) return;
    moved = true; drawing.classList.add("dragging");
    const before = spread();
    fingers.set(event.pointerId, now);
    if (before) zoom(spread() / before, now);
    else { view.x -= (now.x - last.x) / view.scale; view.y -= (now.y - last.y) / view.scale; show(); }
  });
  const lift = (event) => { fingers.delete(event.pointerId); drawing.classList.remove("dragging"); };
  window.addEventListener("pointerup", lift);
  window.addEventListener("pointercancel", lift);

  const actions = { in: () => zoom(1.25), out: () => zoom(0.8), fit, centre: () => { home(); if (centres[0]) choose(centres[0]); } };
  all("[data-zoom]").forEach((button) => button.addEventListener("click", () => actions[button.dataset.zoom]()));
  all("[name=colour]").forEach((radio) => radio.addEventListener("change", () => section.classList.toggle("precision", radio.value === "precision")));
  new ResizeObserver(show).observe(canvas);
  if (chosen) choose(chosen);
  home();
}

/* The curve: the nearest tensor under the pointer, or the next by the arrow keys. */
const points = find("#points") ? JSON.parse(find("#points").textContent) : [];
if (points.length) {
  const plot = find("#plot"), chart = find("svg", plot), cursor = find(".cursor", plot), readout = find("#readout");
  let at = Math.max(0, points.findIndex((point) => point[4] !== null));
  const tell = (index) => {
    at = Math.min(Math.max(index, 0), points.length - 1);
    const [x, y, name, error, node] = points[at];
    cursor.setAttribute("d", `M${x * 1000} 300V${y * 300}`);
    const code = make("code", name);
    readout.replaceChildren(code, make("br", ""), error);
    if (node !== null && find("#drawing")) readout.append(" ", make("button", "Show in the graph", () => chooseNode(node)));
  };
  const nearestTo = (x) => points.reduce((best, point, index) => (Math.abs(point[0] - x) < Math.abs(points[best][0] - x) ? index : best), 0);
  plot.addEventListener("pointermove", (event) => { const r = chart.getBoundingClientRect(); tell(nearestTo((event.clientX - r.left) / r.width)); });
  plot.addEventListener("click", () => chart.focus());
  chart.addEventListener("focus", () => tell(at));
  chart.addEventListener("keydown", (event) => {
    const jump = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: points.length - 1 };
    if (event.key in jump) { tell(jump[event.key]); event.preventDefault(); }
    else if (event.key === "Enter" && points[at][4] !== null) chooseNode(points[at][4]);
  });
}

/* The probes: sorted by a heading, filtered by verdict and by words. */
const probes = find("#probes");
if (probes) {
  const body = probes.tBodies[0], rows = [...body.rows], heads = all("th", probes);
  const verdict = find("#by-verdict"), words = find("#by-text"), shown = find("#shown");
  heads.forEach((head, column) => {
    const name = head.textContent;
    head.replaceChildren(make("button", name, () => {
      const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1, numeric = head.dataset.sort === "number";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value;
      rows.sort((a, b) => sign * (numeric ? value(a) - value(b) : value(a).localeCompare(value(b))));
      body.append(...rows);
    }));
  });
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const filter = () => {
    const wanted = words.value.toLowerCase();
    rows.forEach((row) => { row.hidden = (verdict.value && row.dataset.verdict !== verdict.value) || !texts.get(row).includes(wanted); });
    const count = rows.filter((row) => !row.hidden).length;
    shown.textContent = count === rows.length ? "" : `${count} of ${rows.length}`;
  };
  verdict.addEventListener("change", filter);
  words.addEventListener("input", filter);
}

/* What scrolls can be reached by the keyboard. */
all(".steps pre").forEach((block) => new ResizeObserver(() => {
  if (block.scrollHeight > block.clientHeight) block.tabIndex = 0; else block.removeAttribute("tabindex");
}).observe(block));

/* Copy buttons. */
const copy = async (text) => {
  try { await navigator.clipboard.writeText(text); return true; } catch {
    const area = make("textarea", text);
    document.body.append(area); area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
};
all(".command").forEach((block) => {
  const text = block.textContent;
  const button = make("button", "Copy", async () => {
    const done = await copy(text);
    button.textContent = done ? "Copied" : "Select it"; button.focus();
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  button.className = "live"; button.setAttribute("aria-label", `Copy: ${text}`);
  block.append(button);
});
