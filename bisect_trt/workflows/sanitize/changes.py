"""What was done to a model, in words and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bisect_trt.graph.fold import Removed


@dataclass
class Changes:
    """What has been done so far."""

    shaped: list[str] = field(default_factory=list)
    stored: int = 0
    stored_bytes: int = 0
    folded_nodes: int = 0
    removed: Removed = field(default_factory=Removed)
    sorted: bool = False
    large: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        removed = self.removed
        return {
            "shaped_inputs": self.shaped,
            "folded_nodes": self.folded_nodes,
            "stored_tensors": self.stored,
            "stored_bytes": self.stored_bytes,
            "removed_nodes": removed.nodes,
            "removed_weights": removed.weights,
            "removed_declarations": removed.declarations,
            "sorted": self.sorted,
            "too_large": self.large,
            "not_computed": self.refused,
        }

    def describe(self) -> list[str]:
        """A line for each thing that changed, or was left though asked for."""
        removed = self.removed
        lines = [f"inputs of another shape: {', '.join(self.shaped)}"] if self.shaped else []
        if self.folded_nodes:
            lines.append(f"{self.folded_nodes} node(s) folded into {self.stored} value(s), {self.stored_bytes} bytes")
        if removed.nodes or removed.weights:
            lines.append(f"{removed.nodes} node(s) and {removed.weights} weight(s) removed that no output depends on")
        if removed.declarations:
            lines.append(f"{removed.declarations} declaration(s) removed of tensors that are gone")
        if self.sorted:
            lines.append("nodes put into topological order")
        for names, why in ((self.large, "larger than --fold-size-threshold"), (self.refused, "not computed")):
            if names:
                lines.append(f"not folded, because {why}: {', '.join(names)}")
        return lines or ["nothing to change"]
