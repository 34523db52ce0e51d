-- One table's life in SQL. `python examples/spark_sql.py` runs it in a session that knows the catalog
-- `shop`; so does any session after weir.spark.register(spark, catalog="shop", root="s3://...").

CREATE TABLE shop.db.orders (id BIGINT NOT NULL, state STRING, amount INT, PRIMARY KEY (id))
    CLUSTERED BY (id) INTO 2 BUCKETS;
CREATE TABLE shop.db.states (state STRING NOT NULL, orders BIGINT, PRIMARY KEY (state));

INSERT INTO shop.db.orders
    SELECT id, 'new', cast(id AS INT) * 10 FROM range(1, 7);

-- stream into shop.db.states (a query over STREAM is one that goes on; Spark starts it from Python)
SELECT state, count(*) AS orders FROM STREAM shop.db.orders GROUP BY state;

SELECT * FROM shop.db.states;

CALL shop.system.checkpoint('db.orders', name => 'monday');

MERGE INTO shop.db.orders t
    USING (SELECT * FROM VALUES (1L, 'paid', 10), (2L, 'cancelled', 0), (7L, 'new', 70)
           s(id, state, amount)) s
    ON t.id = s.id
    WHEN MATCHED AND s.state = 'cancelled' THEN DELETE
    WHEN MATCHED THEN UPDATE SET state = s.state
    WHEN NOT MATCHED THEN INSERT *;

UPDATE shop.db.orders SET amount = amount + 1 WHERE state = 'new';

CALL shop.system.compact('db.orders');

SELECT state, count(*) AS orders, sum(amount) AS amount FROM shop.db.orders
    GROUP BY state ORDER BY state;

SELECT count(*) AS orders, sum(amount) AS amount FROM shop.db.orders VERSION AS OF 'monday';
