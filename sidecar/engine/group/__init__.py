"""What the whole group looks like from outside: views of partitions, merged."""
