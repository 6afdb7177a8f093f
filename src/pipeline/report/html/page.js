"use strict";

const narrow = matchMedia("(max-width: 35rem)").matches;
const wide = matchMedia("(min-width: 84rem)");
const ROWS_MORE = 200; // put into the document each time its end comes near

async function unpacked(name) {
  const bytes = Uint8Array.from(atob(document.getElementById(`data-${name}`).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function showCharts() {
  const charts = JSON.parse(await unpacked("charts"));
  if (!Object.keys(charts).length) return;
  document.head.append(Object.assign(document.createElement("script"), { textContent: await unpacked("library") }));
  const { warn } = console;
  console.warn = (...words) => String(words).includes("fit-y") || warn(...words); // bars have a height of their own, which is meant
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = charts[figure.dataset.chart];
    if (narrow) {
      chart.config.axisY.labelLimit = 150;
      chart.config.axisQuantitative.tickCount = 4;
      Object.assign(chart.config.legend, { columns: 2, labelLimit: 90 });
    }
    await vegaEmbed(figure.querySelector(".plot"), { ...chart, background: "transparent" }, {
      mode: "vega-lite",
      renderer: "svg",
      ast: true, // expressions are interpreted: the page may not evaluate text
      actions: { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: "custom" },
      bind: figure.querySelector(".pickers"),
    });
    figure.dataset.drawn = "yes";
  }
}

function shownText(value) {
  if (value === null) return "";
  return typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 }) : String(value);
}

// What has no value comes last, whichever way is sorted.
function compared(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : +(String(a) > String(b));
  return down ? -order : order;
}

// The table of rows: one stage's at a time, filtered by words, sorted by a column.
class Rows {
  constructor(tables) {
    this.tables = tables;
    for (const id of ["table", "filter", "download", "shown", "viewport", "head", "body", "same"]) this[id] = document.getElementById(id);
    this.table.addEventListener("change", () => this.open(this.table.value, this.filter.value));
    this.filter.addEventListener("input", () => this.choose());
    this.download.addEventListener("click", () => this.save());
    this.viewport.addEventListener("scroll", () => this.drawMore());
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
  open(name, words = "") {
    const { columns, same, meanings } = this.tables[name];
    this.table.value = name;
    this.names = Object.keys(columns);
    this.columns = Object.values(columns);
    this.texts = this.columns.map((column) => column.map(shownText));
    this.classes = this.columns.map((column) => (column.some((value) => typeof value === "number") ? "number" : ""));
    this.sorted = { column: -1, down: false };
    this.filter.value = Object.values(same).map(String).includes(words) ? "" : words;
    this.same.replaceChildren(...Object.entries(same).flatMap(([name, value]) => [element("dt", name), element("dd", shownText(value))]));
    this.same.parentElement.hidden = !Object.keys(same).length;
    this.head.replaceChildren(
      ...this.names.map((name, place) => {
        const button = Object.assign(element("button", name), { type: "button", title: meanings[name] ?? name });
        button.addEventListener("click", () => this.sort(place));
        const cell = element("th", "", this.classes[place]);
        cell.append(button);
        return cell;
      })
    );
    this.choose();
  }

  // Up, down, and as it was.
  sort(column) {
    const again = this.sorted.column === column;
    this.sorted = again && this.sorted.down ? { column: -1, down: false } : { column, down: again };
    this.choose();
  }

  choose() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (row, word) =>
      this.texts.some((texts, place) => texts[row].toLowerCase().includes(word) || String(this.columns[place][row]).toLowerCase() === word);
    const every = [...(this.columns[0] ?? []).keys()];
    this.chosen = every.filter((row) => words.every((word) => has(row, word)));
    const { column, down } = this.sorted;
    const values = this.columns[column];
    if (values) this.chosen.sort((a, b) => compared(values[a], values[b], down) || a - b);
    [...this.head.cells].forEach((cell, place) => (cell.ariaSort = place !== column ? null : down ? "descending" : "ascending"));
    this.shown.textContent = `${shownText(this.chosen.length)} of ${shownText(every.length)} rows`;
    this.viewport.scrollTop = 0;
    this.body.replaceChildren();
    this.drawMore();
  }

  drawMore() {
    if (this.viewport.scrollTop + 2 * this.viewport.clientHeight < this.viewport.scrollHeight) return;
    const next = this.chosen.slice(this.body.rows.length, this.body.rows.length + ROWS_MORE);
    this.body.append(
      ...next.map((row) => {
        const line = document.createElement("tr");
        line.append(...this.texts.map((texts, place) => element("td", texts[row], this.names[place] === "status" ? texts[row] : this.classes[place])));
        return line;
      })
    );
  }

  save() {
    const quoted = (value) => (value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
    const lines = [this.names, ...this.chosen.map((row) => this.columns.map((column) => column[row]))];
    const text = lines.map((line) => `${line.map(quoted).join(",")}\n`).join("");
    const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href, download: `${this.table.value}.csv` }).click();
  }
}

function element(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, title: text.length > 48 ? text : "", className });
}

async function show() {
  const contents = document.querySelector("nav details");
  contents.open = wide.matches;
  wide.addEventListener("change", () => (contents.open = wide.matches));
  if (document.getElementById("rows")) new Rows(JSON.parse(await unpacked("tables")));
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
