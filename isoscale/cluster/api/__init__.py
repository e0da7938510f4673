"""The service over HTTP: a table of routes, and what guards every one of them."""
