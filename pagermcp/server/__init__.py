"""The relay as a process: waitress with our settings, start, and a clean stop."""

from pagermcp.server.serve import ServeFailed, serve

__all__ = ["ServeFailed", "serve"]
