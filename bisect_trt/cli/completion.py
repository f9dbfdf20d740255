"""Completion of a command line in the shell: its script, and where that goes.

The script asks this program, which click answers (``_BISECT_TRT_COMPLETE``).
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class, split_arg_string

from bisect_trt.errors import UnavailableError, UsageError

PROGRAM = "bisect-trt"
VARIABLE = "_BISECT_TRT_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """What a shell is to run for the completion of this program."""
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows no {shell}"
    return kind(click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source()


def tensors(incomplete: str) -> list[str]:
    """The tensors that begin so, of the model on the command line that is being completed; none where it cannot be read."""
    words = [word for word in _words() if word.endswith((".onnx", ".onnxtxt")) and Path(word).is_file()]
    if not words:
        return []
    import onnx  # noqa: PLC0415 - of use for this alone

    try:
        graph = onnx.load(words[0], load_external_data=False).graph
    except Exception:  # a command line that is half written is no place to say what is wrong with a file
        return []
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    names += [name for node in graph.node for name in node.output if name]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def last_flag() -> str | None:
    """The flag that the word which is being completed belongs to, where it takes several values."""
    return next((word for word in reversed(_words()) if word.startswith("--")), None)


def _words() -> list[str]:
    """The words before the one that is being completed, as the shells' scripts of click hand them over."""
    words = split_arg_string(os.environ.get("COMP_WORDS", ""))
    place = os.environ.get("COMP_CWORD", "")
    if place.isdecimal():  # bash, zsh
        return words[: int(place)]
    return words[:-1] if place and words and words[-1] == place else words  # fish: the word itself


def show() -> None:
    """Print the script for the user's shell.

    Raises:
        UnavailableError: It is none that there is a script for.
    """
    click.echo(script(_shell()))


def install() -> None:
    """Put the script where the user's shell finds it from its next start on.

    Raises:
        UnavailableError: It is none that there is a script for.
        UsageError: A file cannot be written.
    """
    shell = _shell()
    home = Path.home()
    file = (
        home
        / {
            "bash": f".bash_completions/{PROGRAM}.sh",
            "zsh": f".zfunc/_{PROGRAM}",
            "fish": f".config/fish/completions/{PROGRAM}.fish",
        }[shell]
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script(shell))
        if shell == "bash":
            _add(home / ".bashrc", f"source '{file}'")
        elif shell == "zsh":
            _add(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}; use --show-completion.") from error
    click.echo(f"{shell} completion installed in {file}\nCompletion will take effect once you restart the terminal")


def _add(file: Path, line: str) -> None:
    """Add a line to a file that lacks it."""
    text = file.read_text() if file.exists() else ""
    if line not in text.splitlines():
        file.write_text(f"{text}\n{line}\n")


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise UnavailableError(
            f"there is no completion for the shell '{name}' of the variable SHELL; there is for {', '.join(_SHELLS)}."
        )
    return name
