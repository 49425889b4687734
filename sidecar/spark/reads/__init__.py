"""Reads of single pending messages on Spark: the driver's API asks, and the tasks that have the state answer.

    API ──► entries ──► board  ◄── line ◄── processor ──► reader
            (driver)  (driver)   (executor, at the end of each task of a micro-batch)

`questions` and `reader` are pure.
"""
