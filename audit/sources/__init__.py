"""Where the evidence comes from: both databases, the services' ledgers, Temporal."""
