"""Real text that every machine with this Python has: the documentation of its standard library and packages."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

ENOUGH_CHARACTERS = 2_500_000
VOCABULARY = {"demo": 32000, "small": 2048}  # of each size of model
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "encodings"}


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 40:
                yield text


def _pieces() -> Iterator[str]:
    readmes = {}
    for package in importlib.metadata.distributions():
        body = package.metadata.get_payload()
        if isinstance(body, str) and len(body) > 1000:
            readmes[package.metadata["Name"].lower()] = body
    for name in sorted(readmes):
        yield readmes[name]
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(library).parts):
            yield from _docstrings(path)


def text() -> str:
    """In a fixed order, so that one machine always trains on the same characters."""
    pieces: list[str] = []
    length = 0
    for piece in _pieces():
        pieces.append(piece)
        length += len(piece)
        if length >= ENOUGH_CHARACTERS:
            break
    return "\n\n".join(pieces)


def prepare(folder: Path, vocabulary: int) -> Path:
    """The corpus as int32 tokens of a byte-level BPE trained on it; both are kept in folder and made once."""
    import numpy
    import tokenizers

    words = text()
    key = hashlib.sha256(f"{vocabulary} {tokenizers.__version__} {sys.version_info[:2]} {words}".encode()).hexdigest()
    tokens = folder / f"tokens-{key[:16]}.npy"
    if not tokens.exists():
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(
            words.split("\n\n"), vocab_size=vocabulary, min_frequency=2, special_tokens=["<end>"], show_progress=False
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"tokenizer-{key[:16]}.json").write_text(json.dumps(json.loads(tokenizer.to_str())))
        numpy.save(tokens, numpy.array(tokenizer.encode(words).ids, dtype=numpy.int32))
    return tokens
