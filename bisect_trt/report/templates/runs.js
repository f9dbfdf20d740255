"use strict";
// The page is written again while the run works; browsers keep the place of the reader when they load it again.
if (!document.getElementById("run").hasAttribute("data-ended")) setTimeout(() => location.reload(), 2000);
