"""The Spark engine under a steady load: nothing that it holds may grow."""
