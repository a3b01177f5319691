"""What the process has imported that ranks are forked from: the import is most of a rank's start."""

import sglang.srt.disaggregation.common.conn  # noqa: F401
import sglang.srt.managers.disagg_service  # noqa: F401
import sglang.srt.server_args  # noqa: F401
from sglang.srt.plugins import load_plugins

load_plugins()
import kvxfer.sglang.conn  # noqa: E402,F401
