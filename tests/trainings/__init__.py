"""A short training through any door: it sleeps, raises, collects, evaluates, saves and resumes where a test says so.

`doors.DOORS` has a class for each door: `DOORS["loop"](directory, steps=8).run()`.
"""
