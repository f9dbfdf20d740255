"use strict";
/* What scrolls can be reached by the keyboard, and each landmark has a name of its own. */
const mend = () => {
  document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap").forEach((block) => {
    if (block.scrollWidth > block.clientWidth || block.scrollHeight > block.clientHeight) block.tabIndex = 0;
  });
  document.querySelectorAll(".md-code__nav").forEach((nav, number) => nav.setAttribute("aria-label", `Code ${number + 1}`));
  document.querySelectorAll("nav.md-nav[data-md-level]").forEach((nav, number) => {
    const label = document.getElementById(nav.getAttribute("aria-labelledby"));
    if (!label) return;
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", `Pages ${number + 1} ${label.textContent.trim()}`);
  });
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
};
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
mend();
