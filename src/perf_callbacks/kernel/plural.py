"""Numbers with their nouns, as in sentences for users."""

MOST_RANKS = 8  # that a sentence lists by number


def plural(number: int, noun: str) -> str:
    """Render a number with its noun.

    >>> plural(1, "CPU"), plural(1040, "CPU")
    ('1 CPU', '1,040 CPUs')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
