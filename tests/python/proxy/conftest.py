"""The proxy is an example, not a package: it is imported from its folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "vllm_pd"))
