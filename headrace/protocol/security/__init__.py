"""Security formats and exchanges that brokers and clients share: SASL, OAuth, JAAS, JKS, Java properties. No I/O."""
