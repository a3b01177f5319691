"""A driver that moves nothing, for tests of the runner: answers as drivers do, or misbehaves as its
--mode says (die: ends in the middle of rounds; refuse: answers an error; hang: never answers;
silent: ends before it says hello; noisy: prints what is no answer; stranger: has other work)."""

import argparse
import json
import os
import sys
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", required=True)
    parser.add_argument("--mode", default="")
    options, _ = parser.parse_known_args()
    bad = options.mode if options.role == "decode" else ""

    def say(line):
        print(json.dumps(line), flush=True)

    if bad == "silent":
        sys.exit(3)
    say({"hello": {"role": options.role}})
    for line in sys.stdin:
        order = json.loads(line)
        if order["cmd"] == "meet" and order["hello"]["role"] == options.role:
            say({"error": "met itself"})
        elif order["cmd"] == "prepare":
            say({"fingerprint": 8 if bad == "stranger" else 7})
        elif order["cmd"] == "rounds":
            if bad == "die":
                os.kill(os.getpid(), 9)
            elif bad == "refuse":
                say({"error": "block 3 of 8 is not what was sent, from byte 0"})
                sys.exit(1)
            elif bad == "hang":
                time.sleep(3600)
            elif bad == "noisy":
                print("a library's greeting")
            say({"seconds": [0.001] * order["count"], "preparing_s": 0.0,
                 "cpu_s": 0.001 * order["count"]})
        else:
            say({})


if __name__ == "__main__":
    main()
