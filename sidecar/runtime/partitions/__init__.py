"""The partitions of this instance: on their way in, buffered, handed on."""
