"""Many requests of an asyncio service share few log entries; each is durable when answered."""

import asyncio

import pyarrow as pa

import weir


async def serve(table: weir.Table, requests: int) -> None:
    with table.shard(0).writer() as writer:

        async def answer(number: int) -> int:
            ack = await writer.aput([{"id": number, "v": number / 2}])
            return ack.position

        positions = await asyncio.gather(*(answer(i) for i in range(requests)))
        print(f"{requests} requests in {len(set(positions))} log entries")


schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.float64())])
asyncio.run(serve(weir.create("requests", schema, primary_key="id"), 200))
