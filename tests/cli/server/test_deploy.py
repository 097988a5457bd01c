"""Tests of the command `tllm deploy` with a fake `sbatch` and `squeue`."""

from __future__ import annotations

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.cli.running import Tllm
from tests.samples.lora_adapters import write_converted
from tests.samples.repositories import add_model
from trtllm_serve_cli.paths import Home, find_home


@pytest.fixture
def home(home_folder: Path) -> Home:
    """Return a home with the model `m`."""
    home = find_home()
    add_model(home, "m")
    return home


@pytest.fixture
def tllm(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Tllm:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, output in {
        "tritonserver": "",
        "sbatch": "42",
        "squeue": "PENDING|Priority",
        "scancel": "",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\necho '{output}'\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return Tllm(monkeypatch, capsys)


def test_script_is_written_and_nothing_else(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    code, out, err = tllm("deploy", "slurm", "--partition", "batch", "--time", "08:00:00")
    assert (code, err) == (0, "")
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=tllm-m\n#SBATCH --partition=batch\n")
    file = tmp_path / "m.sbatch"
    assert tllm("deploy", "slurm", "-o", str(file)) == (0, "", f"Next: sbatch {file}\n")
    assert file.read_text().startswith("#!/bin/bash\n")
    assert not home.servers.exists()


def test_submitted_job_is_followed(tllm: Tllm, home: Home) -> None:
    directory = home.servers / "slurm-m-1"
    assert tllm("deploy", "slurm", "--submit") == (
        0,
        "",
        f"Submitted Slurm job 42. The job's files are in {directory}\nNext: tllm status\n",
    )
    assert tllm("status") == (
        0,
        "m: queued\n"
        "  Slurm job 42 is PENDING (Priority)\n"
        f"  repository {home.models / 'm'}\n"
        f"  log {directory / 'server.log'}\n",
        "",
    )
    code, out, _ = tllm("status", "--json")
    (server,) = json.loads(out)["servers"]
    assert (code, server["http"], server["supervisor_pid"]) == (0, None, None)
    assert server["job"] == {"id": "42", "state": "PENDING", "reason": "Priority"}
    code, _, err = tllm("infer", "Hello")
    assert (code, "The server for m has no address yet." in err) == (3, True)
    assert tllm("logs")[0] == 0


def set_output(tmp_path: Path, **programs: str) -> None:
    """Replace programs by scripts that print the text, and fail if it contains "error"."""
    for name, output in programs.items():
        is_error = "error" in output
        (tmp_path / "bin" / name).write_text(
            f"#!/bin/sh\necho '{output}' {'>&2; exit 1' if is_error else ''}\n"
        )


def test_job_is_unknown_while_slurm_is_unreachable(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    tllm("deploy", "slurm", "--submit")
    away = "error: Unable to contact slurm controller"
    set_output(tmp_path, squeue=away, scancel=away)
    assert tllm("status")[1].splitlines()[:3] == [
        "m: unknown", "  Slurm job 42: Slurm did not report the job state.", f"  {away}",
    ]  # fmt: skip
    code, _, err = tllm("infer", "Hello")
    assert (code, "The state of the server for m is unknown." in err) == (3, True)
    for command in (("stop",), ("stop", "--all")):
        code, _, err = tllm(*command)
        assert (code, "Error: Slurm did not cancel job 42." in err, away in err) == (3, True, True)
    code, _, err = tllm("remove", "m", "--yes")
    assert (code, "m was not removed." in err) == (3, True)


def test_stop_removes_an_ended_job_from_the_list(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    tllm("deploy", "slurm", "--submit")
    set_output(tmp_path, squeue="FAILED|NonZeroExitCode", scancel="error: must not run")
    assert "  Next: run `tllm stop` to remove the job from this list\n" in tllm("status")[1]
    code, _, err = tllm("infer", "Hello")
    assert (code, "then run `tllm deploy slurm -m m --submit`" in err) == (3, True)
    assert tllm("stop") == (0, "", "Slurm job 42 had already ended.\n")
    assert tllm("status") == (0, "", "No server is running. Next: run `tllm start`\n")


def test_submit_requires_sbatch(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    (tmp_path / "bin" / "sbatch").unlink()
    code, _, err = tllm("deploy", "slurm", "--submit")
    assert (code, "Error: sbatch is not installed." in err) == (3, True)
    assert tllm("status") == (0, "", "No server is running. Next: run `tllm start`\n")


def test_manifests_as_yaml_and_as_json(tllm: Tllm, tmp_path: Path) -> None:
    command = ("deploy", "k8s", "--image", "mine:1", "-n", "llm", "--no-openai")
    code, out, err = tllm(*command)
    read = list(yaml.safe_load_all(out))
    assert (code, err) == (0, "")
    assert [each["kind"] for each in read] == [
        "Deployment", "Service", "PodMonitor", "HorizontalPodAutoscaler",
    ]  # fmt: skip
    assert {each["metadata"]["namespace"] for each in read} == {"llm"}
    listed = json.loads(tllm(*command, "--json")[1])
    assert (listed["kind"], listed["items"]) == ("List", read)
    file = tmp_path / "m.json"
    next_step = f"Next: kubectl apply -f {file}\n"
    assert tllm(*command, "--json", "-o", str(file)) == (0, "", next_step)
    assert json.loads(file.read_text()) == listed


def test_pods_serve_the_openai_api_with_an_image(tllm: Tllm) -> None:
    command = ("deploy", "k8s", "--image", "mine:1")
    code, out, err = tllm(*command)
    assert (code, "gateway" in out) == (0, False)
    assert err.endswith("To serve the API, pass an image that contains tllm with --openai-image.\n")
    options = ("--openai-image", "tllm:1", "--openai-port", "9100", "--openai-keys-secret", "keys")
    code, out, err = tllm(*command, "-n", "llm", *options, "--openai-auth", "on")
    assert (code, err) == (
        0,
        "OpenAI-compatible API: run `kubectl -n llm port-forward service/tllm-m 9100`, then use "
        "http://127.0.0.1:9100/v1\n",
    )
    config_map, *_ = yaml.safe_load_all(out)
    config = json.loads(config_map["data"]["gateway.json"])
    assert (config["port"], config["key_policy"], config["models"][0]["name"]) == (9100, "on", "m")


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (("--openai-port", "9100"), "Add --openai-image IMAGE."),
        (("--openai-send-timeout", "9"), "--openai-send-timeout requires pods"),
        (("--openai-processes", "2"), "--openai-processes requires pods"),
        (("--openai-keys-secret", "keys"), "Add --openai-image IMAGE."),
        (("--openai-image", "tllm:1", "--no-openai"), "Omit --no-openai."),
    ],
)
def test_options_of_the_openai_api_require_an_image(
    tllm: Tllm, options: tuple[str, ...], fix: str
) -> None:
    code, out, err = tllm("deploy", "k8s", "--image", "mine:1", *options)
    assert (code, out) == (2, "")
    assert fix in " ".join(err.replace("│", " ").split())


def test_job_serves_the_openai_api(tllm: Tllm) -> None:
    _, script, _ = tllm("deploy", "slurm", "--openai-port", "9100", "--openai-auth", "on")
    assert "TLLM_OPENAI_PORT=9100\n" in script
    assert '"key_policy": "on"' in script
    _, script, _ = tllm("deploy", "slurm", "--no-openai")
    assert "OPENAI" not in script


@pytest.mark.parametrize(
    "option", [("--openai-port", "9100"), ("--openai-processes", "2"), ("--openai-auth", "on")]
)
def test_options_of_the_openai_api_require_that_the_job_serves_it(
    tllm: Tllm, option: tuple[str, str]
) -> None:
    code, out, err = tllm("deploy", "slurm", "--no-openai", *option)
    assert (code, out) == (2, "")
    assert f"{option[0]} requires a job" in " ".join(err.split())


COLLECTOR = ("--otlp-endpoint", "http://collector:4318")
TRACES = "http://collector:4318/v1/traces"


def test_job_sends_spans(tllm: Tllm) -> None:
    _, script, _ = tllm("deploy", "slurm", *COLLECTOR)
    assert f"export TLLM_OTLP_TRACES={TRACES}\n" in script
    assert f"--trace-config=opentelemetry,url={TRACES} " in script
    assert f'"otlp_traces": "{TRACES}"' in script


def test_pods_send_spans(tllm: Tllm) -> None:
    command = ("deploy", "k8s", "--image", "mine:1", *COLLECTOR)
    deployment, *_ = yaml.safe_load_all(tllm(*command)[1])
    (triton,) = deployment["spec"]["template"]["spec"]["containers"]
    assert triton["env"] == [
        {"name": "OPENBLAS_NUM_THREADS", "value": "1"},
        {"name": "TLLM_OTLP_TRACES", "value": TRACES},
    ]
    assert f"--trace-config=opentelemetry,url={TRACES} " in triton["command"][-1]
    config_map, *_ = yaml.safe_load_all(tllm(*command, "--openai-image", "tllm:1")[1])
    assert json.loads(config_map["data"]["gateway.json"])["otlp_traces"] == TRACES


@pytest.mark.parametrize("target", ["slurm", "k8s"])
def test_collector_must_have_an_http_url(tllm: Tllm, target: str) -> None:
    code, out, err = tllm("deploy", target, "--otlp-endpoint", "collector:4317")
    assert (code, out, "is not a valid collector URL." in err) == (3, "", True)


def test_output_file_and_submit_exclude_each_other(tllm: Tllm, home: Home, tmp_path: Path) -> None:
    file = tmp_path / "m.sbatch"
    code, out, err = tllm("deploy", "slurm", "--submit", "-o", str(file))
    assert (code, out, "cannot be used with --submit" in err, file.exists()) == (2, "", True, False)
    code, out, err = tllm("deploy", "slurm", "--json")
    assert (code, out, "--json requires --submit" in err) == (2, "", True)
    assert not home.servers.exists()


def test_model_without_an_image_is_refused(tllm: Tllm) -> None:
    code, out, err = tllm("deploy", "k8s")
    assert (code, out) == (3, "")
    assert "Error: No public container image can serve m." in err
    assert "--image IMAGE" in err


@pytest.fixture
def adapters(home: Home) -> Path:
    """Write the adapter `poet` in a folder of TLLM_HOME, and return this folder."""
    return write_converted(home.root / "adapters" / "poet").parent


PODS = ("deploy", "k8s", "--image", "mine:1", "--openai-image", "tllm:1")
ALONE = ("--max-replicas", "1")


def test_job_serves_adapters(tllm: Tllm, home: Home, adapters: Path) -> None:
    """The gateway runs on the node, and the engine worker may run in a container."""
    poet, tenants = adapters / "poet", home.root / "tenants"
    tenants.mkdir()
    options = ("--lora", f"poet={poet}", "--runtime-lora-dir", str(tenants))
    code, script, err = tllm("deploy", "slurm", *options)
    assert (code, err, "container-mounts" in script) == (0, "", False)
    adapter = json.dumps({"name": "poet", "folder": str(poet), "model": "m"})
    assert f'"adapters": [{adapter}], "runtime_lora_dir": "{tenants}"' in script
    _, script, _ = tllm("deploy", "slurm", *options, "--container-image", "IMAGE")
    mounts = "".join(f",{folder}:{folder}:ro" for folder in (poet, tenants))
    assert f"{home.engines / 'm'}:{home.engines / 'm'}:ro{mounts} " in script
    assert tllm("deploy", "slurm", *options, "--submit")[0] == 0
    job = json.loads((home.servers / "slurm-m-1" / "job.json").read_text())
    assert job["plan"]["gateway"]["adapters"] == [json.loads(adapter)]


def test_pods_serve_adapters_from_the_nodes(tllm: Tllm, adapters: Path) -> None:
    poet = adapters / "poet"
    code, out, err = tllm(*PODS, "--lora", f"poet={poet}")
    assert code == 0, err
    config_map, deployment, *others = yaml.safe_load_all(out)
    config = json.loads(config_map["data"]["gateway.json"])
    assert config["adapters"] == [{"name": "poet", "folder": str(poet), "model": "m"}]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"][2] == {
        "name": "model-2", "hostPath": {"path": str(poet), "type": "Directory"},
    }  # fmt: skip
    # The engine worker or, for a TensorRT engine, the gateway reads the adapter.
    mount = {"name": "model-2", "mountPath": str(poet), "readOnly": True}
    assert [mount in each["volumeMounts"] for each in pod["containers"]] == [True, True]
    for each in (config_map, deployment, *others):
        if each["kind"] != "PodMonitor":
            kubernetes_validate.validate(each, "1.31", strict=True)


def test_pods_serve_adapters_from_the_claim(tllm: Tllm, home: Home, adapters: Path) -> None:
    claimed = (*PODS, *ALONE, "--claim", "models")
    code, out, err = tllm(*claimed, "--runtime-lora-dir", str(adapters))
    assert code == 0, err
    config_map, deployment, *_ = yaml.safe_load_all(out)
    assert json.loads(config_map["data"]["gateway.json"])["runtime_lora_dir"] == str(adapters)
    mount = {
        "name": "model", "mountPath": str(adapters), "subPath": "adapters", "readOnly": True,
    }  # fmt: skip
    containers = deployment["spec"]["template"]["spec"]["containers"]
    assert [mount in each["volumeMounts"] for each in containers] == [True, True]
    outside = write_converted(home.root.parent / "outside")
    code, out, err = tllm(*claimed, "--lora", f"poet={outside}")
    assert (code, out) == (3, "")
    assert "Error: The claim models does not contain all of the files that m uses." in err
    assert f"outside TLLM_HOME: {outside}" in err
    assert "--lora" in err.partition("Next: ")[2]


@pytest.mark.parametrize("replicas", ["4", "8"])
def test_fixed_number_of_replicas_is_reported(replicas: str, tllm: Tllm) -> None:
    code, out, err = tllm("deploy", "k8s", "--image", "mine:1", "--replicas", replicas)
    assert (code, "HorizontalPodAutoscaler" in out) == (0, False)
    assert "do not contain an autoscaler, because --replicas" in " ".join(err.split())


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--replicas", "2"), 3, "up to 4 replicas"),
        ((), 3, "add --replicas 1 --max-replicas 1"),
        ((*ALONE, "--openai-processes", "2"), 3, "requires the OpenAI-compatible API to run in a"),
        ((*ALONE, "--no-openai"), 2, "Omit --no-openai."),
    ],
)
def test_adapters_that_pods_cannot_load_are_refused(
    tllm: Tllm, adapters: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = tllm(*PODS, *options, "--runtime-lora-dir", str(adapters))
    text = " ".join(err.replace("│", " ").split())
    assert (found, out, message in text) == (code, "", True)
