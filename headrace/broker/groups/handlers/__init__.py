"""The APIs of groups: requests to events, results to responses."""
