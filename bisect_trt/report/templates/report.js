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
