"""Answer questions, taken one by one from a queue."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="demo/example/queryable")
    parser.add_argument("-p", "--payload", default="An answer", help="what to answer")
    parser.add_argument("--complete", action="store_true", help="it knows all of its keys")
    args = parser.parse_args()
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.declare_queryable(args.key, complete=args.complete) as queryable,
    ):
        say(f"answering on {args.key}")
        for query in queryable:
            with query:  # its end tells the one who asked that there is no more
                asked = "" if query.payload is None else f" with {query.payload.to_string()}"
                say(f"asked {query.selector}{asked}")
                query.reply(args.key, args.payload, encoding=zenoh.Encoding.TEXT_PLAIN)


run(main)
