-- Replaces the details of a record that is still as it was read, on an operator's word; the digest of the first
-- submission stays. Returns a row also where this very amendment was made before.
WITH amended AS (
    UPDATE business_record SET
        record = %(record)s::jsonb, amendments = amendments + 1, amendment = %(amendment)s,
        updated_at = clock_timestamp()
    WHERE task_id = %(task_id)s AND amendments = %(seen)s
    RETURNING task_id
)
SELECT task_id FROM amended
UNION ALL
SELECT task_id FROM business_record WHERE task_id = %(task_id)s AND amendment = %(amendment)s
