"""Scout for routers and peers by multicast."""

import threading

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("-w", "--what", default="peer|router", help="roles to scout for")
    parser.add_argument("-s", "--seconds", type=float, default=2.0, help="duration in seconds")
    args = parser.parse_args()
    scout = zenoh.scout(what=args.what, config=make_config(zenoh.Config, args))
    threading.Timer(args.seconds, scout.stop).start()
    seen = set()
    for hello in scout:
        if str(hello.zid) not in seen:
            seen.add(str(hello.zid))
            say(f"{hello.whatami} {hello.zid} at {', '.join(hello.locators)}")
    say(f"found {len(seen)}")


run(main)
