"""See who comes and goes, also by crash or loss of the network."""

import zenlake as zenoh
from common import arguments, configured, run, say


def main() -> None:
    parser = arguments(__doc__, key="group/**")
    parser.add_argument("--history", action="store_true", help="begin with who is there already")
    args = parser.parse_args()
    with (
        zenoh.open(configured(zenoh.Config, args)) as session,
        session.liveliness().declare_subscriber(args.key, history=args.history) as subscriber,
    ):
        say(f"watching {args.key}")
        for sample in subscriber:
            came = sample.kind == zenoh.SampleKind.PUT
            say(f"{sample.key_expr} {'came' if came else 'went'}")


run(main)
