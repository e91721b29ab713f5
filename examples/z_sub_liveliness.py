"""Watch liveliness tokens appear and disappear, also after a crash or a lost connection."""

import zenlake as zenoh
from common import make_config, make_parser, run, say


def main() -> None:
    parser = make_parser(__doc__, key="group/**")
    parser.add_argument(
        "--history", action="store_true", help="begin with the tokens that are alive already"
    )
    args = parser.parse_args()
    with (
        zenoh.open(make_config(zenoh.Config, args)) as session,
        session.liveliness().declare_subscriber(args.key, history=args.history) as subscriber,
    ):
        say(f"watching {args.key}")
        for sample in subscriber:
            appeared = sample.kind == zenoh.SampleKind.PUT
            say(f"{sample.key_expr} {'appeared' if appeared else 'disappeared'}")


run(main)
