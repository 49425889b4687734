"""What is asked of the cluster besides records: topics, offsets, rights, the clock."""
