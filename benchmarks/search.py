"""The shortest setting of each library that can be trusted: draws doubled, then warm-up halved.

Libraries take turns within every key, so that a busy minute of the machine hits all of them. Every fit goes through a
``Store``, which knows those of an earlier, interrupted run.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from processes import TOO_LONG, run_fit, say

FIRST_DRAWS, LEAST_WARMUP = 250, 25
USUAL_DRAWS = 1_000
SAVE_EVERY = 10.0  # seconds
FILLING_KEY = 999  # of the fits that fill disk caches


class Setting(NamedTuple):
    draws: int
    warmup: int | None = None  # the library's own default


class Store:
    """Fits by what was asked, kept in a JSON file."""

    def __init__(self, path: Path | None = None, resumed: Path | None = None):
        self.path, self.saved = path, time.monotonic()
        self.fits: dict[str, dict] = json.loads(resumed.read_text())["fits"] if resumed else {}
        self.fits = {name: fit for name, fit in self.fits.items() if is_final(fit)}
        self.facts: dict[str, object] = {}

    def fit(self, kind: str, library: str, model: str, *numbers: int, timeout: float, cache: str | None = None) -> dict:
        name = self.name(kind, library, model, *numbers)
        if name not in self.fits:
            self.fits[name] = run_fit(kind, library, model, *numbers, timeout=timeout, cache=cache)
            if time.monotonic() - self.saved > SAVE_EVERY:
                self.save()
        return self.fits[name]

    def name(self, *asked) -> str:
        return " ".join(map(str, asked))

    def has(self, *asked) -> bool:
        return self.name(*asked) in self.fits

    def save(self) -> None:
        if self.path:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({**self.facts, "fits": self.fits}))
            os.replace(part, self.path)
            self.saved = time.monotonic()


def is_final(fit: dict) -> bool:
    """Errors are worth another try when a run is resumed; one that took all its time is not."""
    return "error" not in fit or fit["error"].startswith(TOO_LONG)


def is_trusted(fit: dict, options: argparse.Namespace) -> bool:
    return (
        "error" not in fit
        and fit["max_r_hat"] <= 1.01
        and fit["min_ess_bulk"] >= 400
        and fit["min_ess_tail"] >= options.min_ess_tail
    )


def search(model: str, libraries: list[str], options: argparse.Namespace, store: Store) -> dict[str, dict]:
    """For each library: what was tried, and setting and fits of the shortest that 8 of 10 keys trust.

    ``options``: keys, max_draws, timeout, min_ess_tail (0 where the tail does not count) and halve_warmup.
    """
    needed = math.ceil(0.8 * options.keys)
    result: dict[str, dict] = {name: {"tried": {}} for name in libraries}

    def rounds(settings: dict[str, Setting]) -> list[str]:
        """Fit at ``settings``; the libraries that go on."""
        fits, passing = in_turns("nuts", model, settings, options, store, may_fail=options.keys - needed), []
        for name, setting in settings.items():
            passed = sum(is_trusted(f, options) for f in fits[name])
            result[name]["tried"][written(setting)] = f"{passed} of {len(fits[name])}"
            if passed >= needed:
                passing.append(name)
                if "fits" not in result[name] or typical(fits[name]) < typical(result[name]["fits"]):
                    result[name] |= {
                        "setting": setting,
                        "fits": fits[name],
                        "trusted": f"{passed} of {len(fits[name])}",
                    }
            elif all("error" in f for f in fits[name]):
                result[name].setdefault("error", fits[name][0]["error"])
        return passing

    searching, draws = list(libraries), FIRST_DRAWS
    while searching and draws <= options.max_draws:
        passing = rounds({name: Setting(draws) for name in searching})
        searching = [name for name in searching if name not in passing and "error" not in result[name]]
        draws *= 2
    if options.halve_warmup:
        found = [name for name, r in result.items() if "fits" in r]
        while found:
            settings = {name: Setting(result[name]["setting"].draws, num_warmup(result[name]) // 2) for name in found}
            settings = {name: s for name, s in settings.items() if (s.warmup or 0) >= LEAST_WARMUP}
            passing = rounds(settings)
            found = [name for name in passing if result[name]["setting"] == settings[name]]  # trusted, and quicker
    return result


def in_turns(
    kind: str,
    model: str,
    settings: Mapping[str, Setting],
    options: argparse.Namespace,
    store: Store,
    *,
    may_fail: int,
    caches: Mapping[str, str] | None = None,
    num_keys: int | None = None,
) -> dict[str, list[dict]]:
    """Fits at each library's setting, libraries taking turns within each key; given up after > ``may_fail``."""
    fits: dict[str, list[dict]] = {name: [] for name in settings}
    names = list(settings)
    for key in range(num_keys or options.keys):
        turn = key % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            if sum(not is_trusted(f, options) for f in fits[name]) > may_fail:
                continue
            cache = caches[name] if caches else None
            fit = store.fit(kind, name, model, *numbers_of(key, settings[name]), timeout=options.timeout, cache=cache)
            fits[name].append(fit)
            say(f"{time.strftime('%H:%M:%S')} {model} {name} {kind} {written(settings[name])} key={key}: {line(fit)}")
    return fits


def warm(model: str, result: dict[str, dict], options: argparse.Namespace, store: Store, num_keys: int) -> None:
    """Time the settings found with a disk cache that an earlier fit filled -> ``warm``, fits, of each library."""
    found = {name: r["setting"] for name, r in result.items() if "fits" in r}
    with tempfile.TemporaryDirectory() as root:
        caches = {name: str(Path(root) / name) for name in found}
        for name, setting in found.items():
            Path(caches[name]).mkdir()
            if not store.has("first", name, model, *numbers_of(num_keys - 1, setting)):
                run_fit(
                    "first", name, model, *numbers_of(FILLING_KEY, setting), timeout=options.timeout, cache=caches[name]
                )
        fits = in_turns("first", model, found, options, store, may_fail=num_keys, caches=caches, num_keys=num_keys)
    for name in found:
        result[name]["warm"] = fits[name]


def usual(model: str, result: dict[str, dict], options: argparse.Namespace, store: Store) -> None:
    """Fits of ``USUAL_DRAWS`` after each library's own warm-up -> ``usual``, trusted or not."""
    settings = {name: Setting(USUAL_DRAWS) for name, r in result.items() if "error" not in r}
    for name, fits in in_turns("nuts", model, settings, options, store, may_fail=options.keys).items():
        result[name]["usual"] = fits


def numbers_of(key: int, setting: Setting) -> tuple[int, ...]:
    return (key, setting.draws) if setting.warmup is None else (key, *setting)


def written(setting: Setting) -> str:
    return f"{setting.draws}" if setting.warmup is None else f"{setting.draws} after {setting.warmup}"


def typical(fits: list[dict]) -> float:
    return statistics.median(f["total"] for f in fits if "error" not in f)


def num_warmup(result: dict) -> int:
    return next(f["num_warmup"] for f in result["fits"] if "error" not in f)


def line(fit: dict) -> str:
    if "error" in fit:
        return f"FAILED: {fit['error']}"
    return (
        f"{fit['total']:.2f} s, R-hat {fit['max_r_hat']:.4f}, ESS {fit['min_ess_bulk']:.0f} bulk, "
        f"{fit['min_ess_tail']:.0f} tail"
    )
