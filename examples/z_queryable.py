"""Answer queries, taken one by one from a queue."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/queryable")
    parser.add_argument("-p", "--payload", default="An answer", help="payload of the replies")
    parser.add_argument(
        "--complete",
        action="store_true",
        help="declare it complete: it knows every key that matches",
    )
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_queryable(args.key, complete=args.complete) as queryable,
    ):
        say(f"answering on {args.key}")
        for query in queryable:
            with query:  # Leaving the block tells the querier that no more replies follow.
                payload = "" if query.payload is None else f" with {query.payload.to_string()}"
                say(f"query {query.selector}{payload}")
                query.reply(args.key, args.payload, encoding=zenoh.Encoding.TEXT_PLAIN)


run(main)
