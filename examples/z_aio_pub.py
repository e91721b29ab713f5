"""Publish from asyncio: a put awaits room instead of holding the loop up. Only in zenlake."""

import asyncio

import zenlake as zenoh
from common import arguments, configured, run, say


async def publish() -> None:
    parser = arguments(__doc__, key="demo/example/aio")
    parser.add_argument("-p", "--payload", default="Tick", help="the value")
    parser.add_argument("-n", "--number", type=int, help="how many; without it, for ever")
    parser.add_argument("-i", "--interval", type=float, default=1.0, help="seconds between two")
    args = parser.parse_args()
    async with (
        await zenoh.aio.open(configured(zenoh.Config, args)) as session,
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
