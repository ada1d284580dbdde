"""Relay: stores prompts and answers between web clients and an agent behind NAT, and forwards them."""

__version__ = "0.1.0"
