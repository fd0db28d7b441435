"""Identity of clients, and their rights."""
