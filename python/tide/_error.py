"""The one exception of the library."""

from __future__ import annotations


class Error(RuntimeError):
    """A failure with a code to branch on and one sentence that says what is wrong and what to do.

    code is one of invalid_argument, unsupported, mismatch, no_space, peer_lost, timeout, aborted, closed,
    check_failed and system.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(code, sentence)  # both in args, so that the exception pickles
        self.code = code
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence

    @property
    def recoverable(self) -> bool:
        """Whether the surroundings failed, so that a restart may succeed; False when the same call would fail again."""
        from tide import _tide

        return _tide.recoverable(self.code)
