"""Random faults on three Kafka nodes and up to four instances, judged by a ledger in the end."""
