-- An enriched table of orders, as in Fluss's quickstart for Flink: sources that generate rows, tables with keys,
-- a lookup join, and questions. Run it with `headrace sql -f examples/fluss/quickstart.sql`.

CREATE TEMPORARY TABLE generated_orders (
  order_key BIGINT,
  cust_key INT,
  total DECIMAL(15, 2),
  order_date DATE,
  priority STRING,
  clerk STRING
) WITH (
  'connector' = 'faker',
  'rows-per-second' = '10',
  'number-of-rows' = '500',
  'fields.order_key.expression' = '#{number.numberBetween ''1'',''1000000''}',
  'fields.cust_key.expression' = '#{number.numberBetween ''1'',''21''}',
  'fields.total.expression' = '#{number.randomDouble ''2'',''1'',''1000''}',
  'fields.order_date.expression' = '#{date.past ''100'' ''DAYS''}',
  'fields.priority.expression' = '#{regexify ''(low|medium|high){1}''}',
  'fields.clerk.expression' = '#{regexify ''(Clerk1|Clerk2|Clerk3){1}''}'
);
CREATE TEMPORARY TABLE generated_customers (
  cust_key INT,
  name STRING,
  phone STRING,
  nation_key INT
) WITH (
  'connector' = 'faker',
  'number-of-rows' = '200',
  'fields.cust_key.expression' = '#{number.numberBetween ''1'',''21''}',
  'fields.name.expression' = '#{funnyName.name}',
  'fields.phone.expression' = '#{phoneNumber.cellPhone}',
  'fields.nation_key.expression' = '#{number.numberBetween ''1'',''4''}'
);

CREATE CATALOG fluss_catalog WITH (
  'type' = 'fluss',
  'bootstrap.servers' = 'coordinator-server:9123'
);
USE CATALOG fluss_catalog;

CREATE TABLE customer_orders (
  `order_key` BIGINT,
  `cust_key` INT NOT NULL,
  `total` DECIMAL(15, 2),
  `order_date` DATE,
  `priority` STRING,
  `clerk` STRING,
  `ptime` AS PROCTIME(),
  PRIMARY KEY (`order_key`) NOT ENFORCED
);
CREATE TABLE customers (
  `cust_key` INT NOT NULL,
  `name` STRING,
  `phone` STRING,
  `nation_key` INT NOT NULL,
  PRIMARY KEY (`cust_key`) NOT ENFORCED
);
CREATE TABLE nations (
  `nation_key` INT NOT NULL,
  `name` STRING,
  PRIMARY KEY (`nation_key`) NOT ENFORCED
);
CREATE TABLE enriched (
  `order_key` BIGINT,
  `total` DECIMAL(15, 2),
  `order_date` DATE,
  `customer` STRING,
  `nation` STRING,
  PRIMARY KEY (`order_key`) NOT ENFORCED
) WITH ('bucket.num' = '2');

EXECUTE STATEMENT SET
BEGIN
  INSERT INTO nations VALUES (1, 'CANADA'), (2, 'JORDAN'), (3, 'CHINA');
  INSERT INTO customers SELECT * FROM `default_catalog`.`default_database`.generated_customers;
  INSERT INTO customers VALUES (1, 'Ann', '555-0101', 1);
  INSERT INTO customer_orders SELECT * FROM `default_catalog`.`default_database`.generated_orders;
END;

INSERT INTO enriched
SELECT o.order_key, o.total, o.order_date, c.name, n.name
FROM customer_orders o
LEFT JOIN customers FOR SYSTEM_TIME AS OF `o`.`ptime` AS `c` ON o.cust_key = c.cust_key
LEFT JOIN nations FOR SYSTEM_TIME AS OF `o`.`ptime` AS `n` ON c.nation_key = n.nation_key;

SET 'sql-client.execution.result-mode' = 'tableau';
SET 'execution.runtime-mode' = 'batch';
SET 'table.dml-sync' = 'true';

SELECT * FROM enriched LIMIT 2;
SELECT COUNT(*) FROM enriched;
SELECT DATE_FORMAT(order_date, 'yyyy-MM') AS month, count(*) AS orders FROM enriched GROUP BY month ORDER BY month;
UPDATE customers SET `name` = 'Anna' WHERE `cust_key` = 1;
SELECT * FROM customers WHERE `cust_key` = 1;
DELETE FROM customers WHERE `cust_key` = 1;
SELECT * FROM customers WHERE `cust_key` = 1;
