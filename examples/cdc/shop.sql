CREATE TYPE mood AS ENUM ('calm', 'curious', 'cross');
CREATE TABLE customers (
    id bigint PRIMARY KEY, name text NOT NULL, mood mood, since date, seen timestamptz, home inet, tags text[],
    profile jsonb
);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer bigint NOT NULL, price numeric(12, 2), weight numeric, made timestamp(3),
    changed timestamp, due time, wait interval, paid money, is_open boolean, score double precision
);
CREATE TABLE documents (
    id uuid, part int, body text, scan bytea, pages text[], sizes int[], big bigint[], meta jsonb, note text,
    PRIMARY KEY (id, part)
);
INSERT INTO customers SELECT i, 'customer ' || i, (ARRAY['calm', 'curious', 'cross'])[1 + i % 3]::mood,
    date '2024-02-29' - i, timestamptz '2024-09-19 12:00:00.123456+02' + i * interval '1 hour',
    ('10.0.0.' || i % 256)::inet, ARRAY['a' || i, 'ü "' || i], jsonb_build_object('n', i, 'deep', jsonb_build_array(i))
    FROM generate_series(1, 500) i;
INSERT INTO orders SELECT i, 1 + i % 500, i * 1.25, round(i / 7.0, 1 + i % 9), timestamp '2024-09-19 12:00:00.123' + i * interval '1 min',
    timestamp '2024-09-19 12:00:00.123456' + i * interval '1 min', time '12:34:56.789012', i * interval '1 day 1 hour',
    i::money, i % 2 = 0, i / 3.0 FROM generate_series(1, 5000) i;
CREATE FUNCTION noise(size int) RETURNS text LANGUAGE sql VOLATILE AS
    $$ SELECT string_agg(md5(random()::text), '') FROM generate_series(1, size / 32) $$;
INSERT INTO documents SELECT gen_random_uuid(), i, noise(20000), decode(noise(20000), 'hex'), ARRAY[noise(9000), 'x'],
    (SELECT array_agg((random() * 1e9)::int) FROM generate_series(1, 4000)),
    (SELECT array_agg((random() * 1e18)::bigint) FROM generate_series(1, 2000)),
    jsonb_build_object('i', i, 'noise', noise(9000)), 'first' FROM generate_series(1, 40) i;
INSERT INTO customers VALUES (9001, 'for ever', NULL, 'infinity', 'infinity', NULL, NULL, NULL),
    (9002, 'since ever', NULL, '-infinity', '-infinity', NULL, '{}', NULL);
