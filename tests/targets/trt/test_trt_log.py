"""TensorRT's messages: said without noise, and the same signature for the same failure of another model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.targets.messages import OUT_OF_MEMORY, RunError
from bisect_trt.targets.trt.process import Log, clean, reason, signature

NO_KERNEL = "Could not find any implementation for node"
NO_TACTIC = (
    f"[optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error ({NO_KERNEL} "
    "{ForeignNode[/blocks.6/norm1/Pow...(Unnamed Layer* 1118) [ElementWise]]}.)"
)
GAVE_UP = "[builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error (Assertion engine != nullptr failed. )"
NO_TACTIC_10 = (
    "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node "
    "{ForeignNode[/blocks.6/norm1/Pow.../blocks.6/Add]}. In computeCosts at /_src/optimizer/common/tactic/optimizer.cpp:4115)"
)
SHAPE_COPY = (
    "[optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error ([ShapeHostToDeviceCopy 0] requires bool or uint8 "
    "I/O but node can not be handled by Myelin. Operation is not supported.)"
)
NO_PLUGIN = (
    "the ONNX parser refuses Mystery node '/a/Mystery': In node 3 (importFallbackPluginImporter): UNSUPPORTED_NODE: "
    'Assertion failed: creator && "Plugin not found, are the plugin name, version, and namespace correct?"'
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            NO_TACTIC,
            f"{NO_KERNEL} {{ForeignNode[/blocks.6/norm1/Pow...(Unnamed Layer* 1118) [ElementWise]]}}.",
        ),
        (NO_TACTIC_10, f"{NO_KERNEL} {{ForeignNode[/blocks.6/norm1/Pow.../blocks.6/Add]}}."),
        (
            "9: [a.cpp::reportPluginError::24] Error Code 9: Internal Error (p: no such format)",
            "p: no such format",
        ),
        (
            "2: [a.cpp::resizePhysical::127] Error Code 2: OutOfMemory (no further information)",
            "OutOfMemory",
        ),
        (
            "[defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)",
            "out of memory",
        ),
        (
            "4: [network.cpp::validate::3062] Error Code 4: Internal Error (x: no (valid) one)",
            "x: no (valid) one",
        ),
        ("4: [graphShapeAnalyzer.cpp::processCheck::862] Error Code 4: Internal Error (a)", "a"),
        (
            "[checkMacros.cpp::catchCudaError::203] Error Code 1: Cuda Runtime (symbol not found)",
            "symbol not found",
        ),
        ("Parameter check failed at: engine.cpp::resolveSlots::1227, condition: x", None),
    ],
)
def test_what_is_said(message: str, text: str | None) -> None:
    assert clean(message) == (message if text is None else text)


def test_the_reason_is_not_that_the_builder_gave_up() -> None:
    assert reason([NO_TACTIC, GAVE_UP], "") == reason([GAVE_UP, NO_TACTIC], "") == clean(NO_TACTIC)
    assert reason([GAVE_UP], "") == "Assertion engine != nullptr failed."
    assert reason([NO_TACTIC_10], "") == clean(NO_TACTIC_10)
    assert reason([], "no reason") == "no reason"


NAMES = ["/blocks.6/norm1/Pow", "/blocks.6/Add", "/a/Mystery", "/a/Mystery_output_0", "x", "conv"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (clean(NO_TACTIC), clean(NO_TACTIC_10)),
        (clean(NO_TACTIC), f"{NO_KERNEL} /blocks.6/norm1/Pow."),
        (clean(NO_TACTIC), f"{NO_KERNEL} conv_1 [Shuffle]."),
        (clean(NO_TACTIC), f"{NO_KERNEL} (Unnamed Layer* 7) [Shuffle]."),
        (clean(NO_TACTIC), f"{NO_KERNEL} PWN(PWN(/a/Mystery), /blocks.6/Add) + x_clip."),
        (NO_PLUGIN, NO_PLUGIN.replace("node 3", "node 0").replace("/a/Mystery", "/blocks.6/Add")),
        (
            "conv: weights has count 10 but 20 was expected",
            "/a/Mystery: weights has count 7 but 9 was expected",
        ),
        (
            "CUDA error 700 in cudaFree: bad address 0x7f12",
            "CUDA error 700 in cudaFree: bad address 0x8e00aa",
        ),
    ],
)
def test_the_same_failure_of_another_model_has_the_same_signature(one: str, other: str) -> None:
    assert signature(one, NAMES) == signature(other, [*NAMES, "x_clip"])


def test_other_failures_have_other_signatures() -> None:
    failures = [
        clean(NO_TACTIC),
        clean(SHAPE_COPY),
        NO_PLUGIN,
        "conv: kernel weights has count 10 but 20 was expected",
    ]
    assert len({signature(message, NAMES) for message in failures}) == len(failures)
    assert signature(NO_PLUGIN, NAMES) != signature(
        NO_PLUGIN.replace("Mystery node", "Other node"), NAMES
    )


@pytest.mark.parametrize(
    ("errors", "memory", "poison"),
    [
        (
            ["[defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)"],
            True,
            False,
        ),
        (["2: [a.cpp::b::1] Error Code 2: OutOfMemory (no further information)"], True, False),
        (["Requested amount of GPU memory (1 bytes) could not be allocated."], True, False),
        (
            [
                "[a.cuh::copyRunKernel::1400] Error Code 1: Cuda Runtime (unspecified launch failure)"
            ],
            False,
            True,
        ),
        (
            [
                "1: [x.cpp::y::1] Error Code 1: Cuda Runtime (an illegal memory access was encountered)"
            ],
            False,
            True,
        ),
        ([NO_TACTIC, GAVE_UP], False, False),
        ([], False, False),
    ],
)
def test_memory_and_poison(errors: list[str], *, memory: bool, poison: bool) -> None:
    log = Log()
    log.errors.extend(errors)
    failure = log.failure(RunError, "no reason")
    assert (failure.sign() == OUT_OF_MEMORY, failure.poisoned) == (memory, poison)
    assert not log.errors


names = st.from_regex(r"/[a-z]{1,8}(\.\d{1,2})?/[A-Z][a-z]{2,8}(_\d{1,3})?", fullmatch=True)


@given(st.lists(names, min_size=2, max_size=6, unique=True), st.integers(0, 5000), st.data())
def test_names_and_numbers_never_reach_the_signature(
    known: list[str], number: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(known))
    other = data.draw(st.sampled_from(known))
    for text in (
        "{name}: shape [{n}, 3] of {name} is no [{n}, 4]",
        "in layer {name} ({name} + {other}) at {n}",
    ):
        one = text.format(name=name, other=other, n=number)
        two = text.format(name="/m/Abc", other="/m/Def", n=1)
        assert signature(one, known) == signature(two, ["/m/Abc", "/m/Def"])


@given(st.text(max_size=200), st.lists(st.text(max_size=20), max_size=5))
def test_any_text_has_a_signature_that_masking_again_leaves(text: str, known: list[str]) -> None:
    masked = signature(text, known)
    assert signature(masked, ()) == masked
    assert clean(clean(text)) is not None


def test_what_is_logged_when_the_module_is_emptied_already_is_kept() -> None:
    levels = [
        SimpleNamespace(name=name)
        for name in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
    ]
    trt = SimpleNamespace(ILogger=type("ILogger", (), {level.name: level for level in levels}))
    log = Log()
    logger = log.make_logger(trt)
    trt.ILogger = None
    for level in levels:
        logger.log(level, level.name)
    assert (list(log.errors), list(log.warnings)) == (["INTERNAL_ERROR", "ERROR"], ["WARNING"])
