"""The Spark engine: the same plan() inside Structured Streaming, its state in Spark's state store.

    source: read, parse, policy, pack ──► transformWithState, keyed by input partition: plan() ──► sink

`reads/` lets the driver's API read single messages from the tasks of the running micro-batch.

`blocks`, `pages`, `waiting`, `state/` and, in `stream/`, `wire`, `topic_metadata`, `placement` and `step` are pure.
They, `source/`, `ingest`, `processor` and `sink` run on the executors. The rest runs on the driver.
"""
