"""Send one query and print every reply."""

import zenlake as zenoh
from common import make_config, make_parser, run, say

TARGETS = {
    "best": zenoh.QueryTarget.BEST_MATCHING,
    "all": zenoh.QueryTarget.ALL,
    "complete": zenoh.QueryTarget.ALL_COMPLETE,
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("-s", "--selector", default="demo/example/**", help="key?parameters")
    parser.add_argument("-p", "--payload", help="payload of the query")
    parser.add_argument(
        "-t", "--target", choices=TARGETS, default="best", help="which queryables to query"
    )
    parser.add_argument(
        "-o", "--timeout", type=float, default=10.0, help="seconds to wait for replies"
    )
    args = parser.parse_args()
    with zenoh.open(make_config(zenoh.Config, args)) as session:
        replies = session.get(
            args.selector,
            target=TARGETS[args.target],
            payload=args.payload,
            timeout=args.timeout,
        )
        for reply in replies:
            if (sample := reply.ok) is not None:
                say(f"{sample.key_expr}: {sample.payload.to_string()} ({sample.encoding})")
            else:
                say(f"error: {reply.err.payload.to_string()}")
        say("no more replies")


run(main)
