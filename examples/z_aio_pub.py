"""Publish from asyncio: a put waits for room without blocking the loop. Only in zenlake."""

import asyncio

import zenlake as zenoh
from common import make_config, make_parser, run, say


async def publish() -> None:
    parser = make_parser(__doc__, key="demo/example/aio")
    parser.add_argument("-p", "--payload", default="Tick", help="value to publish")
    parser.add_argument("-n", "--number", type=int, help="how many values; endless without")
    parser.add_argument(
        "-i", "--interval", type=float, default=1.0, help="seconds between two values"
    )
    args = parser.parse_args()
    async with (
        await zenoh.aio.open(make_config(zenoh.Config, args)) as session,
        await session.declare_publisher(args.key) as publisher,
    ):
        count = 0
        while args.number is None or count < args.number:
            payload = f"[{count:4}] {args.payload}"
            await publisher.put(payload)
            say(f"published {args.key}: {payload}")
            count += 1
            await asyncio.sleep(args.interval)


run(lambda: asyncio.run(publish()))
