"""`tllm restart`: a server anew, as it was started."""

from __future__ import annotations

from trtllm_serve_cli.cli.server.start import launch_and_notify, prepare_and_notify
from trtllm_serve_cli.cli.server.stop import DrainOption, stop_and_notify
from trtllm_serve_cli.cli.shared.options import ModelOption
from trtllm_serve_cli.cli.shared.target import ServerOption, parse_url


def restart(
    model: ModelOption = None, url: ServerOption = None, timeout: DrainOption = None
) -> None:
    """Stop a server after the requests in flight, and start it again with the same options.

    What `tllm set` or an editor has changed since takes effect. A server that died is started, too.

    Example:  tllm restart
    """
    from trtllm_serve_cli.launch.servers.replan import replan
    from trtllm_serve_cli.launch.servers.running import find_started
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    server = find_started(home, model, parse_url(url))
    # Whatever is wrong is said while the server still runs, and its image takes no time from it.
    plan = replan(home, server)
    prepare_and_notify(plan)
    if server.is_running:
        stop_and_notify(server, timeout)
    launch_and_notify(plan)
