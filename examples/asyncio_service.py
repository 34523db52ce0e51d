"""Many requests of an asyncio service share a few log entries; each is durable when answered."""

import asyncio

import pyarrow as pa

from weir import aio


async def serve(table: aio.Table, requests: int) -> None:
    async with table.writer() as writer:

        async def answer(number: int) -> int:
            receipt = await writer.put({"id": number, "v": number / 2})
            return next(iter(receipt.positions.values()))

        positions = await asyncio.gather(*(answer(i) for i in range(requests)))
        print(f"{requests} requests in {len(set(positions))} log entries")
    print(await table.get([17]))
    async for batch in table.scan(filter="v > 90"):
        print(batch.num_rows, "rows above 90")


async def main() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.float64())])
    await serve(await aio.create("requests", schema, primary_key="id"), 200)


asyncio.run(main())
