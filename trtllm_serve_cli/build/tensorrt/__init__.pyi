from .plan import plan_tensorrt
from .toolkit import Toolkit, find_examples_dir
from .versions import find_trtllm_version, parse_version

__all__ = ["Toolkit", "find_examples_dir", "find_trtllm_version", "parse_version", "plan_tensorrt"]
