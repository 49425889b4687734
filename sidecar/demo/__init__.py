"""The demonstration: a broker, the sidecar, an application that fails on purpose, and a ledger that audits the sidecar.

plan          what each message does, and what must become of it
application   how an application uses the sidecar: the module to read first
sender        sends the messages, well-formed and malformed
process       the sidecar as a child process, and its figures over HTTP
reading       reads the topics, read_committed
ledger        compares the plan with the topics; pure
screen        the live view and the final table
show          runs the demo from start to end
"""
