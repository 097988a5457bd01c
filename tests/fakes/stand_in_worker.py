"""An engine worker with stand-ins of the engines' packages.

python3 stand_in_worker.py --engine pytorch --fd 5 --config '{...}'
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).with_name("stand_in")), str(Path(__file__).parents[2])]

from trtllm_serve_cli.runtime.worker.worker_main import main

if __name__ == "__main__":
    main()
