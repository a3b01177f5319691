"""Several threads at once, as NIXL allows with NIXL_THREAD_SYNC_STRICT."""

import threading
from typing import Any

from nixl_record import Pair, notifications, run_to_end


def _together(rec: Any, work: Any, count: int) -> None:
    failures: list[str] = []

    def run(number: int) -> None:
        try:
            work(number)
        except Exception as error:
            failures.append(f"{number}: {type(error).__name__}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    rec.call("failures", sorted, failures)


def case_transfers_and_notifications(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec, sync_mode=nixl.api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)

    def work(i: int) -> None:
        for k in range(30):
            handle = pair.a.initialize_xfer(
                "WRITE",
                pair.at_a((i * 1024, 1024)),
                pair.at_b((i * 1024, 1024)),
                "b",
                b"moved %d.%d" % (i, k),
            )
            assert run_to_end(pair.a, handle) == "DONE"
            pair.a.release_xfer_handle(handle)
            pair.a.send_notif("b", b"sent %d.%d" % (i, k))

    _together(rec, work, 6)
    told = notifications(pair.b, 360)
    rec.call("senders", lambda: sorted(told))
    rec.call("messages", lambda: len(told["a"]))
    for i in range(6):
        for word in (b"moved", b"sent"):
            mine = [message for message in told["a"] if message.startswith(b"%s %d." % (word, i))]
            rec.check(
                f"{word!r} of {i} in order", mine == [b"%s %d.%d" % (word, i, k) for k in range(30)]
            )
    rec.check("all written", (pair.b_memory[: 6 * 1024] == pair.a_memory[: 6 * 1024]).all())
