"""Each invariant of the program, and how it is broken: a table that the tests and the documentation are held to."""
