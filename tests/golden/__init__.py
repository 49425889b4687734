"""The bytes of every format, as they were when it was released: today's code must write and read exactly these.

`examples.py` says what each file means. `python -m tests.golden` writes the files that are missing and never
those that are there, because what they hold is in people's topics and state folders.
"""
