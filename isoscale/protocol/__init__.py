"""What crosses a process boundary: messages and events. Values only; no sockets, no torch."""
