"""send_notif, get_new_notifs, update_notifs, check_remote_xfer_done; their order and content."""

from typing import Any

from nixl_record import Pair, notifications, wait_until


def case_send(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    for label, arguments in {
        "bytes": ("b", b"x\x00y"),
        "a string": ("b", "\u00fcber"),
        "nothing": ("b", b""),
        "bytearray": ("b", bytearray(b"ba")),
        "agent by bytes": (b"b", b"q"),
        "unknown": ("zz", b"q"),
        "a number": ("b", 3),
        "None": ("b", None),
        "unknown backend": ("b", b"q", "NOPE"),
    }.items():
        rec.call(label, pair.a.send_notif, *arguments)
    rec.call(
        "by name", lambda: pair.a.send_notif(remote_agent_name="b", notif_msg=b"n", backend=None)
    )
    rec.call("told", notifications, pair.b, 6)
    rec.call("no more", pair.b.get_new_notifs)
    rec.call("a backend", pair.b.get_new_notifs, ["UCX"])
    rec.call("unknown backend", pair.b.get_new_notifs, ["NOPE"])
    rec.call("the other way", pair.b.send_notif, "a", b"back")
    rec.call("told", notifications, pair.a, 1)
    rec.differs("by a backend", "raises TypeError", "None", pair.a.send_notif, "b", b"q", "UCX")


def case_sizes(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    for size in (60_000, 65_536, 65_537, 131_072, 1 << 20):
        message = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
        rec.call(f"{size} bytes", pair.a.send_notif, "b", message[:size])
        pair.a.send_notif("b", b"after it")
        rec.check(
            "they come whole, in order",
            notifications(pair.b, 2) == {"a": [message[:size], b"after it"]},
        )


def case_order(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    sent = [b"%d" % i for i in range(500)]
    for message in sent:
        pair.a.send_notif("b", message)
    rec.check("as they were sent", notifications(pair.b, 500) == {"a": sent})


def case_senders(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    third = nixl.api.nixl_agent("c")
    third.add_remote_agent(pair.b.get_agent_metadata())
    pair.a.send_notif("b", b"of a")
    third.send_notif("b", b"of c")
    pair.b.send_notif("b", b"of b")
    rec.call("each under its name", notifications, pair.b, 3)
    rec.call("knowing is one way", pair.b.send_notif, "c", b"x")


def case_to_oneself(nixl: Any, rec: Any) -> None:
    agent = nixl.api.nixl_agent("a")
    rec.call("send", agent.send_notif, "a", b"me")
    rec.call("send a string", agent.send_notif, "a", "me too")
    rec.call("told", notifications, agent, 2)


def case_update(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    pair.a.send_notif("b", b"one")
    pair.a.send_notif("b", b"two")
    rec.call("both", wait_until, lambda: len(pair.b.update_notifs().get("a", [])) == 2)
    rec.call("again", pair.b.update_notifs)
    rec.call("attribute", lambda: pair.b.notifs)
    rec.check("the same object", pair.b.update_notifs() is pair.b.notifs)
    pair.a.send_notif("b", b"three")
    rec.call("new ones alone", notifications, pair.b, 1)
    rec.call("they were not added", lambda: pair.b.notifs)
    rec.call("by name", lambda: pair.b.update_notifs(backends=["UCX"]))


def case_done(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    b = pair.b
    for message in (b"request 1", b"request 2", b""):
        pair.a.send_notif("b", message)
    rec.call("all there", wait_until, lambda: len(b.update_notifs().get("a", [])) == 3)
    rec.call("prefix", b.check_remote_xfer_done, "a", b"request")
    rec.call("the first was taken", lambda: b.notifs)
    rec.call("within", b.check_remote_xfer_done, "a", b"quest 2")
    rec.call("anywhere", lambda: b.check_remote_xfer_done("a", b"quest 2", tag_is_prefix=False))
    rec.call("taken", lambda: b.notifs)
    rec.call("no more", b.check_remote_xfer_done, "a", b"request")
    rec.call("an empty one is found", b.check_remote_xfer_done, "a", b"")
    rec.call("and stays", lambda: b.notifs)
    rec.call("unknown sender", b.check_remote_xfer_done, "zz", b"request")
    rec.call("sender by bytes", b.check_remote_xfer_done, b"a", b"")
    rec.call("a string as tag", b.check_remote_xfer_done, "a", "request")
    rec.call("by position", b.check_remote_xfer_done, "a", b"", ["UCX"], False)
    rec.call("unknown backend", b.check_remote_xfer_done, "a", b"", ["NOPE"])


def case_notifs_is_an_attribute(nixl: Any, rec: Any) -> None:
    pair = Pair(nixl, rec)
    pair.b.notifs = {"a": [b"put there"], "x": [b"y"]}
    pair.a.send_notif("b", b"new")
    rec.call("added", wait_until, lambda: len(pair.b.update_notifs()["a"]) == 2)
    rec.call("to what is there", lambda: pair.b.notifs)
    rec.call("found", pair.b.check_remote_xfer_done, "x", b"y")
