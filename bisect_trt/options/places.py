"""Where probes run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from bisect_trt.options.spec import option, switch


@dataclass
class Places:
    """Where the target runs."""

    on: Annotated[
        list[str],
        option(
            metavar="PLACE",
            help="Run the target there: python=PATH, env='onnxruntime==1.20.1 numpy<2', ssh=HOST,python=PATH, "
            "command='... python3 -', or ray=auto. Several are several workers.",
        ),
    ] = field(default_factory=list)
    mixed_places: Annotated[bool, switch("Also where the places differ, in versions or hardware.")] = False
