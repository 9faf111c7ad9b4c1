"""Is what a program prints what its page says it prints?

Words must agree; numbers must agree to what their last printed place and Monte Carlo error can promise, since
another release of JAX or another processor rounds otherwise and a long chain then takes another path.
"""

import re

NUMBER = re.compile(r"[-+−]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
RELATIVE = 0.05  # figures of a page come from 1,000 draws or more: a standard error of 3 % of a sd


def difference(expected: str, printed: str) -> str | None:
    """The first disagreement in a sentence, or None. White space (widths of columns) does not count."""
    wanted, got = expected.split(), printed.split()
    for one, other in zip(wanted, got, strict=False):
        if not same_word(one, other):
            return f"the page says `{one}` and the program printed `{other}`"
    if len(wanted) != len(got):
        return f"the page shows {len(wanted)} words and the program printed {len(got)}"
    return None


def same_word(one: str, other: str) -> bool:
    if one == other or one == "...":
        return True
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(value(a) - value(b)) <= 2 * last_place(a) + RELATIVE * abs(value(a)) for a, b in pairs)


def value(number: str) -> float:
    return float(number.replace("−", "-"))


def last_place(number: str) -> float:
    """The size of one unit in the last printed place; 0 for an integer, which agrees relatively or not at all."""
    mantissa, _, exponent = number.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if "." in mantissa or exponent else 0.0
