"""How executors exchange: gloo groups, the place where their members meet, forming and breaking off.

Knows shares and indices, not generations. Peers are not authenticated.
"""
