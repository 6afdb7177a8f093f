"use strict";

const narrow = matchMedia("(max-width: 35rem)").matches;
const wide = matchMedia("(min-width: 84rem)");
const ROWS_MORE = 200; // rows added each time the reader nears the end
const part = (id) => document.getElementById(id);

async function unpacked(name) {
  const bytes = Uint8Array.from(atob(part(`data-${name}`).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function showCharts() {
  const charts = JSON.parse(await unpacked("charts"));
  if (!Object.keys(charts).length) return;
  document.head.append(Object.assign(document.createElement("script"), { textContent: await unpacked("library") }));
  const { warn } = console;
  console.warn = (...words) => String(words).includes("fit-y") || warn(...words); // bars have a fixed height on purpose
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
  return typeof value === "number" ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 }) : String(value ?? "");
}

// Missing values come last in either direction.
function compared(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : +(String(a) > String(b));
  return down ? -order : order;
}

// The table of rows: one stage's at a time, filtered by words, sorted by a column.
class Rows {
  constructor(tables) {
    this.tables = tables;
    part("table").addEventListener("change", () => this.open(part("table").value, part("filter").value));
    part("filter").addEventListener("input", () => this.choose());
    part("download").addEventListener("click", () => this.save());
    part("viewport").addEventListener("scroll", () => this.drawMore());
    addEventListener("hashchange", () => this.follow());
    this.open(part("table").value);
    this.follow();
  }

  follow() {
    const [name, words] = decodeURIComponent(location.hash).replace(/^#rows-/, "").split("/");
    if (!Object.hasOwn(this.tables, name)) return;
    this.open(name, words);
    part("rows").scrollIntoView();
  }

  // words: filters for the rows of one file, unless all rows of the table have them
  open(name, words = "") {
    const { columns, same, meanings } = this.tables[name];
    part("table").value = name;
    this.columns = Object.entries(columns).map(([name, values]) => ({
      name,
      values,
      texts: values.map(shownText),
      kind: values.some((value) => typeof value === "number") ? "number" : "",
    }));
    this.sorted = { place: -1, down: false };
    part("filter").value = Object.values(same).map(String).includes(words) ? "" : words;
    part("same").replaceChildren(...Object.entries(same).flatMap(([name, value]) => [element("dt", name), element("dd", shownText(value))]));
    part("same").parentElement.hidden = !Object.keys(same).length;
    part("head").replaceChildren(
      ...this.columns.map(({ name, kind }, place) => {
        const button = Object.assign(element("button", name), { type: "button", title: meanings[name] ?? name });
        button.addEventListener("click", () => this.sort(place));
        const cell = element("th", "", kind);
        cell.append(button);
        return cell;
      })
    );
    this.choose();
  }

  // Each click: up, then down, then unsorted.
  sort(place) {
    const again = this.sorted.place === place;
    this.sorted = again && this.sorted.down ? { place: -1, down: false } : { place, down: again };
    this.choose();
  }

  choose() {
    const words = part("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (row, word) =>
      this.columns.some(({ texts, values }) => texts[row].toLowerCase().includes(word) || String(values[row]).toLowerCase() === word);
    const every = [...(this.columns[0]?.values ?? []).keys()];
    this.chosen = every.filter((row) => words.every((word) => has(row, word)));
    const { place, down } = this.sorted;
    const values = this.columns[place]?.values;
    if (values) this.chosen.sort((a, b) => compared(values[a], values[b], down) || a - b);
    [...part("head").cells].forEach((cell, at) => (cell.ariaSort = at !== place ? null : down ? "descending" : "ascending"));
    part("shown").textContent = `${shownText(this.chosen.length)} of ${shownText(every.length)} rows`;
    part("viewport").scrollTop = 0;
    part("body").replaceChildren();
    this.drawMore();
  }

  drawMore() {
    const { scrollTop, clientHeight, scrollHeight } = part("viewport");
    if (scrollTop + 2 * clientHeight < scrollHeight) return;
    for (const row of this.chosen.slice(part("body").rows.length).slice(0, ROWS_MORE)) {
      const cells = this.columns.map(({ name, texts, kind }) => element("td", texts[row], name === "status" ? texts[row] : kind));
      part("body").insertRow().append(...cells);
    }
  }

  save() {
    const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const lines = [this.columns.map(({ name }) => name), ...this.chosen.map((row) => this.columns.map(({ values }) => values[row] ?? ""))];
    const text = lines.map((line) => `${line.map(quoted).join(",")}\n`).join("");
    const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href, download: `${part("table").value}.csv` }).click();
  }
}

function element(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, title: text.length > 48 ? text : "", className });
}

async function show() {
  const contents = document.querySelector("nav details");
  contents.open = wide.matches;
  wide.addEventListener("change", () => (contents.open = wide.matches));
  if (part("rows")) new Rows(JSON.parse(await unpacked("tables")));
  await showCharts();
}

show()
  .catch((error) => {
    console.error(error);
    part("failure").textContent = `Charts or tables could not be shown: ${error.message}`;
    part("failure").hidden = false;
  })
  .finally(() => (document.body.dataset.ready = "yes"));
