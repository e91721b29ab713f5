"""A storage in memory: a subscriber fills it, a queryable answers from it."""

import threading

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="demo/example/**")
    parser.add_argument(
        "--complete", action="store_true", help="declare it complete: it has every key that matches"
    )
    args = parser.parse_args()
    stored: dict[zenoh.KeyExpr, zenoh.Sample] = {}

    def store(sample: zenoh.Sample) -> None:
        if sample.kind == zenoh.SampleKind.DELETE:
            stored.pop(sample.key_expr, None)
            say(f"deleted {sample.key_expr}")
        else:
            stored[sample.key_expr] = sample
            say(f"stored {sample.key_expr}")

    def answer(query: zenoh.Query) -> None:
        with query:
            say(f"query {query.selector}")
            for key, sample in list(stored.items()):
                if query.key_expr.intersects(key):
                    query.reply(
                        key,
                        sample.payload,
                        encoding=sample.encoding,
                        timestamp=sample.timestamp,
                    )

    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.declare_subscriber(args.key, store),
        session.declare_queryable(args.key, answer, complete=args.complete),
    ):
        say(f"storing {args.key}")
        threading.Event().wait()


run(main)
