"""Every TensorRT name that the adapter uses is one that each version whose branch uses it has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from trt_api import ADAPTER, APIS, BRANCHES, VERSIONS, find_uses, missing

from bisect_trt.targets.trt.session import _DTYPES

FILES = sorted(path.name for path in ADAPTER.glob("*.py"))
SOURCES = {name: (ADAPTER / name).read_text(encoding="utf-8") for name in FILES}


@pytest.mark.parametrize("file", FILES)
def test_each_version_has_the_names_that_its_branch_uses(file: str) -> None:
    uses = find_uses(SOURCES[file], file)
    assert not uses.unknown, "add to the tables of trt_api.py:\n" + "\n".join(uses.unknown)
    assert not list(missing(uses)), "\n".join(missing(uses))


def test_names_of_some_versions_are_declared_as_such_and_no_other() -> None:
    for name, versions in BRANCHES.items():
        assert versions != VERSIONS, name
        assert all(APIS[version].has(name) for version in versions), name


def known_uses() -> Iterator[tuple[str, str]]:
    for file in FILES:
        for name in find_uses(SOURCES[file], file).names:
            yield file, name


@pytest.mark.parametrize(
    "name",
    [
        "Builder.create_network",
        "Builder.build_serialized_network",
        "Builder.create_optimization_profile",
        "BuilderFlag.FP16",
        "BuilderFlag.OBEY_PRECISION_CONSTRAINTS",
        "IBuilderConfig.set_flag",
        "IBuilderConfig.set_timing_cache",
        "ITimingCache.serialize",
        "INetworkDefinition.get_layer",
        "INetworkDefinition.unmark_output",
        "ILayer.precision",
        "ILayer.get_output",
        "ITensor.is_shape_tensor",
        "OnnxParser.get_error",
        "ParserError.desc",
        "Runtime.deserialize_cuda_engine",
        "ICudaEngine.get_tensor_mode",
        "IExecutionContext.execute_async_v3",
        "EngineInspector.get_engine_information",
        "IOptimizationProfile.set_shape",
        "IOutputAllocator.notify_shape",
        "TensorLocation.HOST",
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
        "OnnxParser",
        "init_libnvinfer_plugins",
    ],
)
def test_the_reader_sees_uses_of_every_kind(name: str) -> None:
    assert name in {seen for _, seen in known_uses()}


def test_every_name_that_is_misspelt_is_found() -> None:
    """A letter more in any of them, wherever it stands: nothing is checked by an accident of the tables."""
    skipped = {"__init__", "name"}
    tried = 0
    for file, name in known_uses():
        last = name.rpartition(".")[2]
        if last in skipped:
            continue
        mutated = re.sub(rf"(?<=[.\"']){last}\b", f"{last}x", SOURCES[file])
        mutated = re.sub(rf"def {last}\b", f"def {last}x", mutated)
        if mutated == SOURCES[file]:
            continue  # it is put together when the adapter runs: the table of such names is held above
        uses = find_uses(mutated, file)
        found = [*missing(uses), *uses.unknown]
        assert found, f"{file}: {last}x passes for {name}"
        tried += 1
    assert tried > 60


def test_types_of_tensors_are_known_by_the_names_that_versions_give_them() -> None:
    every = {name for api in APIS.values() for name in api.names["DataType"]}
    assert set(_DTYPES) <= every
    assert every - set(_DTYPES) <= {"E8M0", "FP4", "INT4"}  # never those of an input or output
