"""Look for routers and peers by multicast, for a while."""

import threading

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("-w", "--what", default="peer|router", help="whom to look for")
    parser.add_argument("-s", "--seconds", type=float, default=2.0, help="for how long")
    args = parser.parse_args()
    scout = zenoh.scout(what=args.what, config=configured(zenoh.Config, args))
    threading.Timer(args.seconds, scout.stop).start()
    seen = set()
    for hello in scout:
        if str(hello.zid) not in seen:
            seen.add(str(hello.zid))
            say(f"{hello.whatami} {hello.zid} at {', '.join(hello.locators)}")
    say(f"found {len(seen)}")


run(main)
