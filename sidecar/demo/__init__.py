"""The demonstration: a broker, the sidecar, an application that fails on purpose, and a ledger that audits the sidecar.

plan          what each message is meant to do, and what must become of it
application   how an application uses the sidecar: the module to read first
sender        sends the messages, good and malformed
process       the sidecar as a child process, and what it says of itself
reading       what the topics say, read_committed
ledger        compares the plan with the topics; pure
screen        the live view and the final table
show          the order of it all
"""
