"""Who tiers which table now, and how far the lake is."""
