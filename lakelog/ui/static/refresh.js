// Keeps a page current: fetches the same page again, and replaces its main element. Without this file, all pages work.
"use strict";

const status = document.getElementById("refreshing");

// The user is typing, has chosen a field, or has marked text: a replacement would undo this.
function isBusy(main) {
  const fields = [...main.querySelectorAll("input, select")];
  const changed = fields.some((field) => field.type !== "hidden" && field.value !== field.defaultValue && field.tagName === "INPUT");
  return document.hidden || changed || fields.includes(document.activeElement) || !getSelection().isCollapsed;
}

// The open parts, the positions of scrolled tables, and the element with the focus are kept.
function replaceMain(main, newer) {
  const places = "details, .wide, a, summary";
  const before = [...main.querySelectorAll(places)];
  const after = [...newer.querySelectorAll(places)];
  const focused = before.indexOf(document.activeElement);
  main.replaceChildren(...newer.childNodes);
  main.dataset.refreshSeconds = newer.dataset.refreshSeconds ?? main.dataset.refreshSeconds; // an error does not say
  if (before.length === after.length) {
    after.forEach((each, place) => {
      if (before[place].open) each.open = true;
    });
    after.forEach((each, place) => {
      each.scrollLeft = before[place].scrolledTo ?? 0;
    });
    if (focused >= 0) after[focused].focus({ preventScroll: true });
  }
}

async function refresh() {
  const main = document.getElementById("main");
  if (isBusy(main)) return;
  try {
    const response = await fetch(location.href, { cache: "no-store", credentials: "same-origin" });
    if (response.redirected) return location.reload();
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const newer = page.getElementById("main");
    if (!newer || isBusy(main)) return;
    main.querySelectorAll(".wide").forEach((each) => (each.scrolledTo = each.scrollLeft));
    replaceMain(main, newer);
    status.textContent = "";
  } catch {
    status.textContent = "The server does not answer. This page shows an earlier state.";
  }
}

// The server says in how many seconds to ask again: soon while it works on what the page will show, never if 0.
function refreshLater() {
  const seconds = Number(document.getElementById("main").dataset.refreshSeconds ?? 0);
  if (seconds > 0) setTimeout(() => refresh().finally(refreshLater), seconds * 1000);
}

refreshLater();
