"""Who may do what: Kafka's ACLs, what they allow, where they are kept, and what is written down of refusals."""
