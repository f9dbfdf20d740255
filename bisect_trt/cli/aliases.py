"""Options of Polygraphy that are read as options of bisect-trt; docs/from-polygraphy.md lists them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

ALIASES: dict[str, tuple[str, ...]] = {
    "--model-input-shapes": ("--input-shapes",),
    "--trt-outputs": ("--onnx-outputs",),
    "--mark-all": ("--onnx-outputs", "mark", "all"),
    "--trt-exclude-outputs": ("--onnx-exclude-outputs",),
    "--exclude-outputs": ("--onnx-exclude-outputs",),
    "--iter-artifact": ("--candidate",),
    "--intermediate-artifact": ("--candidate",),
    "--art-dir": ("--artifacts-dir",),
    "--fp-to-fp16": ("--fp16",),
    "--show-output": (),
    "--hide-fail-output": (),
    "--sparse-weights": ("--builder-flag", "SPARSE_WEIGHTS"),
    "--version-compatible": ("--builder-flag", "VERSION_COMPATIBLE"),
    "--exclude-lean-runtime": ("--builder-flag", "EXCLUDE_LEAN_RUNTIME"),
    "--refittable": ("--builder-flag", "REFIT"),
    "--strip-plan": ("--builder-flag", "STRIP_PLAN"),
    "--weight-streaming": ("--builder-flag", "WEIGHT_STREAMING"),
    "--direct-io": ("--builder-flag", "DIRECT_IO"),
    "--allow-gpu-fallback": ("--builder-flag", "GPU_FALLBACK"),
}
"""The words in place of a flag; its values, if it takes any, follow them. Those without words have no effect."""


def translated(words: Sequence[str], flags: Collection[str], check: str) -> list[str]:
    """Return a command line in which options of Polygraphy are replaced, as far as the command has their counterpart.

    Args:
        words: The words of the command line.
        flags: The flags of the command.
        check: The flag of the check command; no word after it is changed.
    """
    result: list[str] = []
    for place, word in enumerate(words):
        if word == check:
            return [*result, *words[place:]]
        name, equals, value = word.partition("=")
        alias = ALIASES.get(name)
        if alias is None or name in flags or (alias and alias[0] not in flags):
            result.append(word)
        elif alias:
            result += [*alias[:-1], f"{alias[-1]}{equals}{value}"]
    return result
