"""Declarations of the broker's configurations, one module per area; `broker_config` has the table of all of them."""
