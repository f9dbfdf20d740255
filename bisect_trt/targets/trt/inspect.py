"""What an engine is made of: its layers, the ONNX nodes behind each, and the precision that each really runs in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto

from bisect_trt.targets.base import EngineLayer
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.standalone import LAYER_SUFFIX

_METADATA = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
"""What TensorRT 10 says of a layer's origin."""
_REGION = re.compile(r"\{ForeignNode\[(.*?)\.\.\.(.*?)\]\}")
"""A region that Myelin compiled as a whole: its first and its last layer."""
_SINGLE = re.compile(r"\{ForeignNode\[(.*?)\]\}")
_UNNAMED = re.compile(r"\(Unnamed Layer\* \d+\) \[[^\]]*\]")
_PIECES = re.compile(r" \+ |PWN\(|\)|, |\|\|")


class Origins:
    """Which node a name in an engine comes from."""

    def __init__(
        self, model: ModelProto, layers: Sequence[tuple[str, int | None]] = (), original: ModelProto | None = None
    ) -> None:
        """Collect the names.

        Args:
            model: What was parsed, each node with a name of its own.
            layers: The network's layers in the parser's order, each with the place of its node. Without them, regions
                are taken in the order of the graph, and names of layers that are no node's are not known.
            original: What it was before it was lowered, its nodes by the same names.
        """
        made = {node.name: [name for name in node.output if name] for node in (original or model).graph.node}
        self._made = [made.get(node.name, []) for node in model.graph.node]
        self._order = [place for _, place in layers]
        self._layers = {name: index for index, (name, _) in enumerate(layers)}
        # A name may be several things; the last one set here counts.
        self._places: dict[str, int] = {}
        for place, node in reversed(list(enumerate(model.graph.node))):
            self._places.update(dict.fromkeys(node.input, place))  # a weight is as good as its first reader
        for place, node in enumerate(model.graph.node):
            self._places.update(dict.fromkeys(node.output, place))
        self._places.update({name: place for name, place in layers if place is not None})
        self._places.update({node.name: place for place, node in enumerate(model.graph.node)})
        self._places.pop("", None)

    def place(self, name: str) -> int | None:
        """The place of the node that a layer, a node or a tensor of this name belongs to."""
        return self._places.get(name, self._places.get(LAYER_SUFFIX.sub("", name)))

    def tensors(self, place: int) -> list[str]:
        """What a node makes, by the names in the original; nothing for a Cast that was added."""
        return self._made[place]

    def region(self, first: str, last: str) -> set[int]:
        """The nodes from one layer to another; one of them if the other is not known."""
        if first in self._layers and last in self._layers:
            low, high = sorted((self._layers[first], self._layers[last]))
            return {place for place in self._order[low : high + 1] if place is not None}
        ends = [place for place in map(self.place, (first, last)) if place is not None]
        return set(range(min(ends), max(ends) + 1)) if ends else set()


def engine_layers(engine: Any, origins: Origins, tensorrt: TensorRt) -> list[EngineLayer]:
    """The layers of an engine, in the order they run."""
    inspector = engine.create_engine_inspector()
    plain = inspector.get_engine_information(tensorrt.trt.LayerInformationFormat.JSON)
    return parse_layers(json.loads(plain, strict=False).get("Layers", []), origins)


def describe_layers(engine: Any, origins: Origins, tensorrt: TensorRt) -> list[dict[str, Any]]:
    """The same as plain values; its nodes are given by the ``tensors`` that they make.

    None where what the inspector says cannot be read: that is no reason to say anything else of a model that runs.
    """
    try:
        layers = engine_layers(engine, origins, tensorrt)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        print(f"TensorRT: what the engine inspector says cannot be read ({error!r})", flush=True)
        return []
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "precisions": list(layer.precisions),
            "tensors": [name for place in layer.nodes for name in origins.tensors(place)],
            "tactic": layer.tactic,
            "formats": list(layer.formats),
        }
        for layer in layers
    ]


def parse_layers(layers: Sequence[Mapping[str, Any] | str], origins: Origins) -> list[EngineLayer]:
    """Read the inspector's JSON; without detailed verbosity it holds names alone.

    A region's name tells its ends. What lies between them and is named by another layer is that layer's.
    """
    entries: list[Mapping[str, Any]] = [{"Name": layer} if isinstance(layer, str) else layer for layer in layers]
    named = [_named(entry, origins) for entry in entries]
    claimed = set().union(*named)
    found = []
    for entry, own in zip(entries, named, strict=True):
        spans = [origins.region(first, last) for first, last in _REGION.findall(str(entry["Name"]))]
        nodes = own | (set().union(*spans) - claimed)
        made = [str(output.get("Format/Datatype", "")) for output in entry.get("Outputs", [])]
        precisions = tuple(dict.fromkeys(_precision(text) for text in made))
        name, kind = str(entry["Name"]), str(entry.get("LayerType", ""))
        formats = tuple(_format(each) for side in ("Inputs", "Outputs") for each in entry.get(side, []))
        found.append(EngineLayer(name, kind, tuple(sorted(nodes)), precisions, _tactic(entry), formats))
    return found


def _tactic(entry: Mapping[str, Any]) -> str | None:
    """The kernel's number, as far as a version says it, and its name."""
    said = [str(entry[key]) for key in ("TacticValue", "TacticName") if entry.get(key) not in (None, "")]
    return " ".join(said) or None


def _format(tensor: Mapping[str, Any]) -> str:
    """How a tensor of a layer lies in memory: ``Row major linear FP32``."""
    return str(tensor.get("Format/Datatype", tensor.get("Format", "")))


def _named(entry: Mapping[str, Any], origins: Origins) -> set[int]:
    """The nodes that a layer's name and metadata speak of one by one, and the ends of regions."""
    name = str(entry["Name"])
    words = [*_METADATA.findall(str(entry.get("Metadata", ""))), name]
    words += [end for ends in _REGION.findall(name) for end in ends]
    rest = _SINGLE.sub(r"\1", _REGION.sub("", name))
    words += [rest, *_UNNAMED.findall(rest), *_PIECES.split(_UNNAMED.sub("", rest))]
    return {place for word in words if (place := origins.place(word.strip())) is not None}


def _precision(text: str) -> str:
    """``float16`` of ``Two wide channel vectorized row major FP16 format``, ``float32`` of ``Row major linear FP32``."""
    known = {"FP32": "float32", "Float": "float32", "FP16": "float16", "Half": "float16", "BFloat16": "bfloat16"}
    known |= {"Int8": "int8", "INT8": "int8", "FP8": "fp8", "Int32": "int32", "INT32": "int32", "Bool": "bool"}
    known |= {"Int64": "int64", "INT64": "int64", "BOOL": "bool", "BF16": "bfloat16"}
    return next((kind for word, kind in known.items() if re.search(rf"\b{word}\b", text)), text)
