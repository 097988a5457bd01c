"""`tllm restart`: restart a server with the same options."""

from __future__ import annotations

from trtllm_serve_cli.cli.server.start import launch_and_notify, prepare_and_notify
from trtllm_serve_cli.cli.server.stop import DrainOption, stop_and_notify
from trtllm_serve_cli.cli.shared.completion import served_models
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.options import JsonOption, ServedModelOption
from trtllm_serve_cli.cli.shared.target import ServerOption, parse_url


@accepts_name(complete=served_models)
def restart(
    model: ServedModelOption = None,
    url: ServerOption = None,
    timeout: DrainOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restart a server with the same options, after its requests in flight have finished.

    Changes to the server's model repositories take effect. A server that has died is started again.

    Example:  tllm restart
    """
    from trtllm_serve_cli.launch.servers.replan import replan
    from trtllm_serve_cli.launch.servers.running import find_started
    from trtllm_serve_cli.paths import find_home

    home = find_home()
    server = find_started(home, model, parse_url(url))
    # Plan the launch and fetch the container image while the server is still running, so that the
    # download adds no downtime and a failed plan leaves the server running.
    plan = replan(home, server)
    prepare_and_notify(plan)
    if server.is_running:
        stop_and_notify(server, timeout, is_restart=True)
    launch_and_notify(plan, as_json=as_json)
