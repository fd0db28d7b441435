"""Authorization by Kafka's ACLs: their meaning, their store, and the audit log of refusals."""
