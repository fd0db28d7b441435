"""Coordination stores besides the embedded one."""
