"""The view of the whole group: views of partitions, merged."""
