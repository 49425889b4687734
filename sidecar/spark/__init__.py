"""The Spark engine: the same plan() inside Structured Streaming, its state in Spark's state store.

    Kafka source ──► mapInArrow: parse, policy, pack ──► transformWithState, keyed by input partition: plan() ──► sink

`wire`, `cells`, `shard_store`, `blocks`, `pages`, `names`, `facts`, `placement` and `turn` are pure; they and `intake`,
`processor` and `sink` run on the executors. The rest runs on the driver.
"""
