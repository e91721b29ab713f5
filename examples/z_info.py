"""Print the id of this session, the nodes it is connected to, and its links."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    args = make_parser(__doc__).parse_args()
    with zenoh.open(make_config(zenoh.Config, args)) as session:
        info = session.info
        say(f"own id: {info.zid()}")
        say("routers:", *sorted(map(str, info.routers_zid())))
        say("peers:", *sorted(map(str, info.peers_zid())))
        for link in info.links():
            say(f"link: {link.src} to {link.dst}, MTU {link.mtu} bytes")


run(main)
