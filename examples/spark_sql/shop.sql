-- # A database and its tables
CREATE NAMESPACE IF NOT EXISTS headrace.shop COMMENT 'what is sold';
CREATE TABLE headrace.shop.customers (
    name STRING,
    country STRING,
    since DATE,
    PRIMARY KEY (name)
);
CREATE TABLE headrace.shop.orders (
    id BIGINT NOT NULL,
    customer STRING,
    price DECIMAL(9, 2),
    state STRING DEFAULT 'new' COMMENT 'new, paid or sent'
) COMMENT 'one row each' TBLPROPERTIES ('primary-key' = 'id', 'bucket.num' = '2');
CREATE TABLE headrace.shop.clicks (at TIMESTAMP, page STRING, customer STRING);
SHOW TABLES IN headrace.shop;
DESCRIBE TABLE EXTENDED headrace.shop.orders;

-- # Rows
INSERT INTO headrace.shop.customers VALUES
    ('Ann', 'IS', DATE '2023-01-05'), ('Bob', 'PT', DATE '2024-03-01'), ('Cy', NULL, NULL);
INSERT INTO headrace.shop.orders (id, customer, price, state)
    SELECT id, element_at(array('Ann', 'Bob', 'Cy'), CAST(id % 3 + 1 AS INT)), id * 1.25, 'new' FROM range(1, 1001);
INSERT INTO headrace.shop.clicks SELECT timestamp_seconds(1726740000 + id), '/p' || id % 7, 'Ann' FROM range(5000);

-- # Questions
SELECT c.country, count(*) AS orders, sum(o.price) AS paid
    FROM headrace.shop.orders o JOIN headrace.shop.customers c ON o.customer = c.name
    WHERE o.price > 100 GROUP BY c.country ORDER BY c.country;
SELECT page, count(*) AS clicks FROM headrace.shop.clicks
    WHERE at >= TIMESTAMP '2024-09-19 10:00:00' GROUP BY page ORDER BY clicks DESC, page LIMIT 3;
SELECT * FROM (
    SELECT id, price, rank() OVER (PARTITION BY customer ORDER BY price DESC) AS place FROM headrace.shop.orders
) WHERE place = 1 ORDER BY id;

-- # Changes
UPDATE headrace.shop.orders SET state = 'paid' WHERE price >= 1000;
DELETE FROM headrace.shop.orders WHERE customer = 'Cy' AND state = 'new';
MERGE INTO headrace.shop.orders t
    USING (SELECT * FROM VALUES (801, 'sent'), (802, 'gone'), (2001, 'new') AS v (id, state)) s ON t.id = s.id
    WHEN MATCHED AND s.state = 'gone' THEN DELETE
    WHEN MATCHED THEN UPDATE SET t.state = s.state
    WHEN NOT MATCHED THEN INSERT (id, customer, price, state) VALUES (s.id, 'Ann', 1.00, s.state);
SELECT state, count(*) AS orders FROM headrace.shop.orders GROUP BY state ORDER BY state;
SELECT _change_type, count(*) AS changes FROM headrace.shop.`orders$changelog`
    GROUP BY _change_type ORDER BY _change_type;

-- # A table changes
ALTER TABLE headrace.shop.orders ADD COLUMNS (note STRING COMMENT 'free text', weight INT DEFAULT 1);
ALTER TABLE headrace.shop.orders RENAME COLUMN customer TO buyer;
CREATE TABLE headrace.shop.best TBLPROPERTIES ('primary-key' = 'buyer')
    AS SELECT coalesce(buyer, '') AS buyer, max(price) AS price FROM headrace.shop.orders GROUP BY buyer;
SELECT * FROM headrace.shop.best ORDER BY buyer;

-- # Another day's prices
CREATE TABLE headrace.shop.prices (day STRING NOT NULL, item STRING NOT NULL, price DECIMAL(9, 2), PRIMARY KEY (day, item))
    PARTITIONED BY (day);
INSERT INTO headrace.shop.prices VALUES ('d1', 'pen', 1.00), ('d1', 'ink', 4.00), ('d2', 'pen', 1.10);
INSERT OVERWRITE headrace.shop.prices PARTITION (day = 'd1') VALUES ('pen', 1.05), ('pad', 2.50);
UPDATE headrace.shop.prices SET price = price + 1;
SELECT * FROM headrace.shop.prices ORDER BY day, item;
SHOW CREATE TABLE headrace.shop.prices;
SHOW TBLPROPERTIES headrace.shop.orders;
CREATE OR REPLACE TEMPORARY VIEW cheap AS SELECT item FROM headrace.shop.prices WHERE price < 3;
SELECT count(*) AS first FROM headrace.shop.clicks VERSION AS OF '{"0": 100}';

-- # All is as it should be
SELECT (SELECT count(*) FROM headrace.shop.clicks) = 5000
    AND (SELECT count(*) FROM headrace.shop.orders WHERE weight = 1 AND note IS NULL) =
        (SELECT count(*) FROM headrace.shop.orders)
    AND (SELECT count(*) FROM headrace.shop.orders) = 734
    AND (SELECT count(*) FROM headrace.shop.best) = 3
    AND (SELECT count(*) FROM cheap) = 2
    AND (SELECT sum(price) FROM headrace.shop.prices) = 7.65 AS well
