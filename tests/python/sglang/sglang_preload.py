"""What the process has imported that ranks are forked from: the import is most of a rank's start."""

import sglang_rank

sglang_rank.add_users()

import kvxfer.sglang  # noqa: E402
import sglang.srt.disaggregation.common.conn  # noqa: E402,F401
import sglang.srt.server_args  # noqa: E402,F401

kvxfer.sglang.install()
import kvxfer.sglang.conn  # noqa: E402,F401
