"""Runtimes under test, each a plug-in: :mod:`bisect_trt.targets.base` has the contract and the registry."""
