"""The dashboard: its shell, styles and scripts, as files that are served as they are. Knows no job and no secret.

What a page shows comes from the API, by the reader's own session; nothing of it is in the pages themselves.
"""
