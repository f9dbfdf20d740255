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

/* The curve: the nearest tensor under the pointer, or the next by the arrow keys. */
const points = find("#points") ? JSON.parse(find("#points").textContent) : [];
if (points.length) {
  const plot = find("#plot"), chart = find("svg", plot), cursor = find(".cursor", plot), readout = find("#readout");
  let at = 0;
  const tell = (index) => {
    at = Math.min(Math.max(index, 0), points.length - 1);
    const [x, y, name, error] = points[at];
    cursor.setAttribute("d", `M${x * 1000} 300V${y * 300}`);
    readout.replaceChildren(make("code", name), make("br", ""), error);
  };
  const nearestTo = (x) => points.reduce((best, point, index) => (Math.abs(point[0] - x) < Math.abs(points[best][0] - x) ? index : best), 0);
  plot.addEventListener("pointermove", (event) => { const r = chart.getBoundingClientRect(); tell(nearestTo((event.clientX - r.left) / r.width)); });
  plot.addEventListener("click", () => chart.focus());
  chart.addEventListener("focus", () => tell(at));
  chart.addEventListener("keydown", (event) => {
    const jump = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: points.length - 1 };
    if (event.key in jump) { tell(jump[event.key]); event.preventDefault(); }
  });
}

/* The graph around the answer, laid out by dagre. */
const drawGraph = (data, box) => {
  const space = "http://www.w3.org/2000/svg", pen = document.createElement("canvas").getContext("2d");
  const shape = (name, attributes, parent, text = "") => {
    const element = document.createElementNS(space, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most / 2 - 1)}…${text.slice(1 - most / 2)}`);
  pen.font = "12px sans-serif";
  const width = (...lines) => Math.max(...lines.map((line) => pen.measureText(line).width)) * 1.12 + 20;
  const graph = new dagre.graphlib.Graph({ multigraph: true }).setGraph({ rankdir: "TB", nodesep: 16, ranksep: 26, marginx: 8, marginy: 8 });
  const makers = new Map(), dot = { width: 10, height: 10 };
  data.nodes.forEach((node, index) => {
    const label = short(node.name, 30);
    graph.setNode(`${index}`, { ...node, label, width: width(node.op, label), height: 40 });
    node.outputs.forEach((tensor) => makers.set(tensor, `${index}`));
  });
  const link = (from, to, tensor) => {
    const { kind, error, passed } = data.tensors[tensor], lines = [short(kind, 40), ...(error ? [`error ${error}`] : [])];
    graph.setEdge(from, to, { lines, tensor, passed, width: width(...lines), height: 14 * lines.length, labelpos: "c" }, tensor);
  };
  data.nodes.forEach((node, index) => node.inputs.forEach((tensor) => {
    const from = makers.get(tensor) ?? `before ${tensor}`;
    if (!makers.has(tensor)) graph.setNode(from, { ...dot });
    link(from, `${index}`, tensor);
  }));
  data.continued.filter((tensor) => makers.has(tensor)).forEach((tensor) => {
    graph.setNode(`after ${tensor}`, { ...dot });
    link(makers.get(tensor), `after ${tensor}`, tensor);
  });
  dagre.layout(graph);
  const size = graph.graph();
  const svg = shape("svg", { width: size.width, height: size.height, viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": `Graph of ${data.nodes.length} nodes` }, box);
  const labels = [];
  graph.edges().forEach((id) => {
    const edge = graph.edge(id), style = edge.passed === null ? "" : edge.passed ? "match" : "wrong";
    const group = shape("g", { class: `edge ${style}` }, svg);
    shape("title", {}, group, edge.tensor);
    shape("path", { d: `M${edge.points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}` }, group);
    labels.push([edge, style]);
  });
  labels.forEach(([edge, style]) => { // above all lines, which end at their ground
    const group = shape("g", { class: `edge ${style}` }, svg), height = 14 * edge.lines.length;
    shape("rect", { class: "ground", x: edge.x - edge.width / 2 + 8, y: edge.y - height / 2, width: edge.width - 16, height }, group);
    edge.lines.forEach((line, place) => shape("text", { x: edge.x, y: edge.y + 11 - height / 2 + 14 * place }, group, line));
  });
  graph.nodes().forEach((id) => {
    const node = graph.node(id);
    if (!node.op) { shape("circle", { class: "rest-of-model", cx: node.x, cy: node.y, r: 4 }, svg); return; }
    const group = shape("g", { class: node.answer ? "node answer" : "node" }, svg);
    shape("title", {}, group, node.name);
    shape("rect", { x: node.x - node.width / 2, y: node.y - 20, width: node.width, height: 40, rx: 6 }, group);
    shape("text", { x: node.x, y: node.y - 3, class: "op" }, group, node.op);
    shape("text", { x: node.x, y: node.y + 12 }, group, node.label);
  });
  const first = graph.node(`${Math.max(data.nodes.findIndex((node) => node.answer), 0)}`);
  if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) find("#region figcaption").append(" It is larger than its frame: scroll it.");
  box.scrollTo(first.x - box.clientWidth / 2, first.y - box.clientHeight / 2);
};
if (find("#region-data")) drawGraph(JSON.parse(find("#region-data").textContent), find("#region .scroll"));

/* On a narrow screen each cell names its column. */
all(".scroll table:not(#probes)").forEach((table) => {
  const heads = all("thead th", table).map((head) => head.textContent);
  all("tbody td", table).forEach((cell) => { if (heads[cell.cellIndex]) cell.dataset.head = heads[cell.cellIndex]; });
});

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
