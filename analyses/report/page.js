"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["automatic", "light", "dark"];
  const remember = {
    // Storage can be forbidden for a file that was opened from disk.
    get() { try { return localStorage.getItem("interp-theme"); } catch { return null; } },
    set(theme) { try { localStorage.setItem("interp-theme", theme); } catch { /* the choice lasts until the page closes */ } },
  };
  let theme = themes.includes(remember.get()) ? remember.get() : "automatic";
  const applyTheme = () => {
    if (theme === "automatic") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  applyTheme();

  const sortBy = (header) => {
    const headers = [...header.parentElement.cells];
    const column = headers.indexOf(header);
    const numeric = header.classList.contains("number");
    const current = header.getAttribute("aria-sort");
    const first = numeric ? "descending" : "ascending";
    const direction = current === "none" ? first : current === "ascending" ? "descending" : "ascending";
    headers.forEach((other) => other.setAttribute("aria-sort", other === header ? direction : "none"));
    const sign = direction === "ascending" ? 1 : -1;
    const body = header.closest("table").tBodies[0];
    const keyed = [...body.rows].map((row) => [row.cells[column].dataset.sort ?? row.cells[column].textContent, row]);
    keyed.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
    });
    body.append(...keyed.map(([, row]) => row));
  };

  const copy = async (button) => {
    const code = button.closest(".command").querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  };

  const unfold = (hash) => {
    const place = document.getElementById(hash.slice(1));
    for (let fold = place?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    return place;
  };

  const followReading = () => {
    const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
    const places = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
    const mark = () => {
      const atEnd = innerHeight + scrollY >= root.scrollHeight - 4;
      const passed = places.filter((place) => place.getBoundingClientRect().top < innerHeight * 0.3);
      const here = atEnd ? places.at(-1) : passed.at(-1) ?? places[0];
      links.forEach((link, id) => {
        if (here && id === here.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    };
    addEventListener("scroll", mark, { passive: true });
    addEventListener("resize", mark, { passive: true });
    mark();
  };

  addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("button.theme");
    const name = () => { button.textContent = `Theme: ${theme}`; };
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      remember.set(theme);
      applyTheme();
      name();
    });
    name();
    button.hidden = false;
    document.querySelectorAll("button.copy").forEach((each) => {
      each.hidden = false;
      each.addEventListener("click", () => copy(each));
    });
    document.querySelectorAll("th button").forEach((each) => {
      each.addEventListener("click", () => sortBy(each.closest("th")));
    });
    // A second press of a link changes no hash, and going back presses none.
    document.addEventListener("click", (event) => unfold(event.target.closest("a[href^='#']")?.getAttribute("href") ?? ""));
    addEventListener("hashchange", () => unfold(location.hash)?.scrollIntoView());
    if (location.hash) unfold(location.hash)?.scrollIntoView();
    followReading();
  });

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open]):not(.fold)")];
    closed.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));
})();
