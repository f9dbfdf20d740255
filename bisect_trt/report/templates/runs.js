"use strict";
// Fetches the page again and replaces the sections that changed; where the reader is stays as it is.
async function follow() {
  let pause = 1000;
  try {
    const answer = await fetch(location.href, {cache: "no-store"});
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = document.getElementById("main");
      for (const section of fresh.querySelectorAll("main > section")) {
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
