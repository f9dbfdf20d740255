"""The fields of all answers in one struct, which a command fills; it is made from their types.

Type checkers read ``draft.pyi``, which is made from them too (``make docs``).
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
from msgspec import UNSET

from bisect_trt.report.answers import ANSWERS, Answer
from bisect_trt.report.parts import Head, Sought

_kinds: dict[str, Any] = {}
for _answer in (Answer, *ANSWERS.values()):
    for _field in msgspec.structs.fields(_answer):
        _kind: Any = _field.type
        # A list in place of a tuple of any length, so that a command can add to it.
        if get_origin(_kind) is tuple and ... in get_args(_kind):
            _kind = list[get_args(_kind)[0]]
        _kinds[_field.name] = _kinds.get(_field.name) | _kind
Draft = msgspec.defstruct(
    "Draft",
    [
        (name, Sought[kind], UNSET)
        for name, kind in _kinds.items()
        if name not in {"schema", "report", "lines", *Head.__struct_fields__}
    ],
    bases=(Head,),
)
