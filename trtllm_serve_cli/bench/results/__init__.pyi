from .page import render_page
from .perfetto import render_trace
from .stored import StoredResult, read_result, read_results
from .views import write_views

__all__ = [
    "StoredResult",
    "read_result",
    "read_results",
    "render_page",
    "render_trace",
    "write_views",
]
