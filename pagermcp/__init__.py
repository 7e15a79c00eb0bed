"""PagerMCP: a pager and relay whose message bus is the file system."""

__version__ = "0.1.0"
