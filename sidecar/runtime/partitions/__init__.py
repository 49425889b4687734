"""The partitions of this instance: recovery, buffering and hand-over."""
