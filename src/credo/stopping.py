"""Ctrl-C and SIGTERM in a long run: noted at once, obeyed between two chunks.

Python's own answer to Ctrl-C is an exception wherever the main thread stands. In JAX's callback of the garbage
collector it is printed and lost; in the compiler it loses a program half made, at which the interpreter crashes as it
ends. Here the first signal is only noted, and the loop raises where it may. A second one has its usual effect.
"""

import signal
import sys
import threading
from collections.abc import Callable


class Stopping:
    """``with Stopping() as stop:`` hears signals, ``stop.check()`` obeys them, and at its end all is as it was before.

    Ctrl-C becomes KeyboardInterrupt with the sentence of ``kept`` as its note; SIGTERM prints it and becomes
    SystemExit(143). Nothing is heard on threads other than the main one, where Python delivers no signals, nor where
    the program has handlers of its own.
    """

    def __init__(self):
        self.heard: int | None = None
        self.usual: dict[int, Callable | int] = {}
        self.kept: Callable[[], str | None] = lambda: None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            # Back in this order: Ctrl-C, which may raise as soon as it is given back, comes last.
            for number, usual in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
                if signal.getsignal(number) == usual:
                    self.usual[number] = usual
                    signal.signal(number, self._hear)
        return self

    def _hear(self, number: int, _frame) -> None:
        self.heard = number
        signal.signal(number, self.usual[number])

    def check(self) -> None:
        """KeyboardInterrupt where a signal was heard."""
        if self.heard is not None:
            raise KeyboardInterrupt

    def __exit__(self, _type, error, _traceback) -> None:
        for number, usual in self.usual.items():
            if signal.getsignal(number) == self._hear:  # what the user's code has set meanwhile stays
                signal.signal(number, usual)
        sentence = self.kept()
        if self.heard == signal.SIGTERM:
            print(" ".join(["Stopped by SIGTERM.", sentence or ""]).strip(), file=sys.stderr, flush=True)
            raise SystemExit(128 + signal.SIGTERM)
        if isinstance(error, KeyboardInterrupt):
            _note(error, sentence)
        elif self.heard is not None:  # after the last check; another error may be one that the caller goes on from
            raise _note(KeyboardInterrupt(), sentence)


def _note(error: KeyboardInterrupt, sentence: str | None) -> KeyboardInterrupt:
    if sentence:
        error.add_note(sentence)
    return error
