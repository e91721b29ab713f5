"""Print who this session is, whom it is connected to, and over which links."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    args = arguments(__doc__).parse_args()
    with zenoh.open(configured(zenoh.Config, args)) as session:
        info = session.info
        say(f"I am {info.zid()}")
        say("routers:", *sorted(map(str, info.routers_zid())))
        say("peers:", *sorted(map(str, info.peers_zid())))
        for link in info.links():
            say(f"link: {link.src} to {link.dst}, at most {link.mtu} bytes at once")


run(main)
