"use strict";
// Asks for the page's sections again, and puts in those that changed; where the reader is stays as it is.
let seen = "";
async function follow() {
  let pause = 1000;
  try {
    const answer = await fetch(location.href, {headers: {"X-Sections": "1", "If-None-Match": seen}, cache: "no-store"});
    if (answer.ok) {
      seen = answer.headers.get("ETag") || "";
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = document.getElementById("main");
      for (const section of fresh.querySelectorAll("section")) {
        const old = document.getElementById(section.id);
        if (!old) main.append(section);
        else if (old.outerHTML !== section.outerHTML && !old.contains(document.activeElement)) old.replaceWith(section);
      }
    }
    const run = document.getElementById("run");
    if (!run || run.hasAttribute("data-ended")) pause = 5000;
  } catch (error) {
    pause = 5000; // the server has ended, or is busy
  }
  setTimeout(follow, pause);
}
setTimeout(follow, 1000);
