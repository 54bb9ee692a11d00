"""The local stack: its databases, members and addresses, started in order and kept running."""
