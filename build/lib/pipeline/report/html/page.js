"use strict";

const narrow = matchMedia("(max-width: 35rem)");
const wide = matchMedia("(min-width: 84rem)");
const MOST_COLUMN_CH = 48;
const ROWS_BEYOND = 8; // rendered above and below what is seen

async function unpacked(name) {
  const bytes = Uint8Array.from(atob(document.getElementById(`data-${name}`).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Plots

// Of a light page: on a dark one the style sheet exchanges light and dark.
function look() {
  const [ink, muted, line] = ["#1c2126", "#5b6570", "#e2e6ea"];
  const labels = { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", titleColor: muted };
  return {
    background: "transparent",
    customFormatTypes: true,
    font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null },
    axis: { ...labels, labelColor: muted, gridColor: line, domainColor: line, tickColor: line, titlePadding: 8 },
    axisY: { labelLimit: narrow.matches ? 150 : 260 },
    axisQuantitative: { tickCount: narrow.matches ? 4 : 8 },
    legend: {
      ...labels,
      labelColor: ink,
      orient: "top",
      columns: narrow.matches ? 2 : 5,
      labelLimit: narrow.matches ? 90 : 260,
      symbolSize: 80,
      symbolBaseFillColor: ink,
      symbolBaseStrokeColor: ink,
    },
    bar: { cornerRadiusEnd: 2 },
    line: { strokeWidth: 2 },
    rule: { color: ink },
    text: { color: muted, fontSize: 12 },
  };
}

// Vega-Lite warns that a chart with one bar a line has a height of its own, which is meant.
function warned(method, _level, words) {
  if (!words.some((word) => String(word).includes("fit-y"))) console[method](...words);
}

async function drawCharts(charts) {
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const pickers = figure.querySelector(".pickers");
    pickers.replaceChildren();
    await vegaEmbed(figure.querySelector(".plot"), charts[figure.dataset.chart], {
      mode: "vega-lite",
      renderer: "svg",
      ast: true, // expressions are interpreted: the page may not evaluate text
      config: look(),
      actions: { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: "custom" },
      bind: pickers,
      logger: vega.logger(vega.Warn, undefined, warned),
    });
    figure.dataset.drawn = "yes";
  }
}

async function showCharts() {
  const charts = JSON.parse(await unpacked("charts"));
  if (!Object.keys(charts).length) return;
  const script = document.createElement("script");
  script.textContent = await unpacked("vega");
  document.head.append(script);
  vega.expressionFunction("tell", (value) => shownText(value, 4));
  let drawing = drawCharts(charts);
  narrow.addEventListener("change", () => (drawing = drawing.then(() => drawCharts(charts))));
  await drawing;
}

// Tables of rows

function shownText(value, digits = 6) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

// What has no value comes last, whichever way is sorted.
function compared(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : +(String(a) > String(b));
  return down ? -order : order;
}

class Rows {
  constructor(tables) {
    this.tables = tables;
    for (const id of ["table", "status", "filter", "download", "shown", "viewport", "widths", "head", "body", "same"]) {
      this[id] = document.getElementById(id);
    }
    this.table.addEventListener("change", () => this.open(this.table.value, this.filter.value, this.status.value));
    this.status.addEventListener("change", () => this.choose());
    this.filter.addEventListener("input", () => this.choose());
    this.download.addEventListener("click", () => this.save());
    this.viewport.addEventListener("scroll", () => this.draw());
    addEventListener("resize", () => this.draw());
    addEventListener("hashchange", () => this.follow());
    this.open(this.table.value);
    this.follow();
  }

  follow() {
    const [name, words] = decodeURIComponent(location.hash).replace(/^#rows-/, "").split("/");
    if (!Object.hasOwn(this.tables, name)) return;
    this.open(name, words);
    document.getElementById("rows").scrollIntoView();
  }

  // words: what its rows have in one of the files, where those of all files do not
  open(name, words = "", status = "all") {
    this.table.value = name;
    const { columns, same, meanings, told_by } = this.tables[name];
    this.toldBy = told_by;
    document.getElementById("told-by").textContent = told_by;
    this.names = Object.keys(columns);
    this.columns = Object.values(columns);
    this.texts = this.columns.map((column) => column.map((value) => shownText(value)));
    this.count = this.columns[0]?.length ?? 0;
    this.sorted = { column: -1, down: false };
    const found = [...new Set(columns[told_by] ?? [])].sort();
    this.status.replaceChildren(...["all", ...found].map((word) => new Option(word)));
    this.status.value = found.includes(status) ? status : "all";
    this.filter.value = Object.values(same).map(String).includes(words) ? "" : words;
    this.same.replaceChildren(...Object.entries(same).flatMap(([name, value]) => [element("dt", name), element("dd", shownText(value))]));
    this.same.parentElement.hidden = !Object.keys(same).length;
    this.drawHead(meanings);
    this.choose();
  }

  drawHead(meanings) {
    const widths = this.names.map((name, place) =>
      this.texts[place].reduce((most, text) => Math.max(most, Math.min(text.length, MOST_COLUMN_CH)), name.length + 2)
    );
    this.widths.replaceChildren(...widths.map((ch) => Object.assign(document.createElement("col"), { style: `width: calc(${ch}ch + 1.5rem)` })));
    this.body.parentElement.style.width = `calc(${widths.reduce((sum, ch) => sum + ch, 0)}ch + ${1.5 * widths.length}rem)`;
    const cells = this.names.map((name, place) => {
      const button = element("button", name);
      button.type = "button";
      button.title = Object.hasOwn(meanings, name) ? `${name}: ${meanings[name]}` : name;
      button.addEventListener("click", () => this.sort(place));
      const cell = element("th", "", this.isNumber(place) ? "number" : "");
      cell.append(button);
      return cell;
    });
    const row = document.createElement("tr");
    row.append(...cells);
    this.head.replaceChildren(row);
  }

  isNumber(place) {
    return this.columns[place].some((value) => typeof value === "number");
  }

  sort(column) {
    const again = this.sorted.column === column;
    this.sorted = again && this.sorted.down ? { column: -1, down: false } : { column, down: again };
    this.choose();
  }

  choose() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = this.columns[this.names.indexOf(this.toldBy)];
    const wanted = this.status.value;
    this.chosen = [];
    for (let row = 0; row < this.count; row++) {
      if (wanted !== "all" && statuses[row] !== wanted) continue;
      const cells = words.length ? this.texts.map((texts) => texts[row].toLowerCase()) : [];
      const plain = words.length ? this.columns.map((column) => String(column[row]).toLowerCase()) : [];
      if (words.every((word) => cells.some((cell, place) => cell.includes(word) || plain[place] === word))) this.chosen.push(row);
    }
    const { column, down } = this.sorted;
    if (column >= 0) {
      const values = this.columns[column];
      this.chosen.sort((a, b) => compared(values[a], values[b], down) || a - b);
    }
    [...this.head.rows[0].cells].forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    this.shown.textContent = `${shownText(this.chosen.length)} of ${shownText(this.count)} rows`;
    this.viewport.scrollTop = 0;
    this.drawn = "";
    this.draw();
  }

  // Only the rows that are seen are in the document, between two spaces as high as the others.
  draw() {
    const height = parseFloat(getComputedStyle(this.head.rows[0]).height) || 28;
    const first = Math.max(0, Math.floor(this.viewport.scrollTop / height) - ROWS_BEYOND);
    const last = Math.min(this.chosen.length, first + Math.ceil(this.viewport.clientHeight / height) + 2 * ROWS_BEYOND);
    if (this.drawn === `${first} ${last}`) return;
    this.drawn = `${first} ${last}`;
    const rows = this.chosen.slice(first, last).map((row) => this.drawRow(row));
    this.body.replaceChildren(space(first * height), ...rows, space((this.chosen.length - last) * height));
  }

  drawRow(row) {
    const line = document.createElement("tr");
    this.names.forEach((name, place) => {
      const text = this.texts[place][row];
      const cell = element("td", text, name === "status" ? text : typeof this.columns[place][row] === "number" ? "number" : "");
      if (text.length > MOST_COLUMN_CH) cell.title = text;
      line.append(cell);
    });
    return line;
  }

  save() {
    const quoted = (value) => (value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
    const lines = this.chosen.map((row) => this.columns.map((column) => quoted(column[row])).join(","));
    const text = [this.names.map(quoted).join(","), ...lines, ""].join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${this.table.value}.csv`;
    link.click();
  }
}

function element(tag, text, name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function space(height) {
  const row = element("tr", "", "space");
  const cell = document.createElement("td");
  cell.style.height = `${height}px`;
  row.append(cell);
  return row;
}

async function show() {
  const contents = document.querySelector("nav details");
  contents.open = wide.matches;
  wide.addEventListener("change", () => (contents.open = wide.matches));
  const tables = JSON.parse(await unpacked("tables"));
  if (document.getElementById("rows")) new Rows(tables);
  await showCharts();
}

show()
  .catch((error) => {
    console.error(error);
    const failure = document.getElementById("failure");
    failure.textContent = `Plots or tables could not be shown: ${error.message}`;
    failure.hidden = false;
  })
  .finally(() => (document.body.dataset.ready = "yes"));
