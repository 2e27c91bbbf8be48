"""What a schema holds, as PostgreSQL's catalogs tell it: for comparing two ways to make the same tables."""

import sqlalchemy as sa

__all__ = ["QUERIES", "Catalog", "differences", "dump"]

Catalog = dict[str, list[tuple[object, ...]]]

QUERIES = {
    "tables": """
        SELECT c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.reloptions,
            obj_description(c.oid, 'pg_class')
        FROM pg_class c WHERE c.relnamespace = :namespace AND c.relkind NOT IN ('i', 'I')""",
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            a.attgenerated, a.attcollation, a.attstorage, a.attstattarget, pg_get_expr(d.adbin, d.adrelid),
            col_description(c.oid, a.attnum)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = :namespace AND c.relkind IN ('r', 'p', 'v') AND a.attnum > 0 AND NOT a.attisdropped""",
    "sequences": """
        SELECT c.relname, format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache,
            s.seqcycle, d.refobjid::regclass::text, d.refobjsubid, d.deptype
        FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
            LEFT JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
        WHERE c.relnamespace = :namespace""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, convalidated, condeferrable, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = :namespace""",
    "indexes": """
        SELECT c.relname, i.indisunique, i.indisprimary, i.indisvalid, c.reloptions, pg_get_indexdef(c.oid)
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = :namespace""",
    "triggers": """
        SELECT t.tgname, t.tgenabled, pg_get_triggerdef(t.oid)
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = :namespace""",
    "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = :namespace",
    "types": "SELECT typname, typtype FROM pg_type WHERE typnamespace = :namespace",
}


def dump(connection: sa.Connection, schema: str = "public") -> Catalog:
    """Everything in a schema but oids and rows: two equal dumps are two equal schemas."""
    namespace = connection.scalar(sa.text("SELECT to_regnamespace(:schema)::oid"), {"schema": schema})
    return {
        name: sorted(tuple(row) for row in connection.execute(sa.text(query), {"namespace": namespace}))
        for name, query in QUERIES.items()
    }


def differences(left: Catalog, right: Catalog) -> list[str]:
    """What is in one dump and not in the other, for people."""
    return [
        f"{side} {name}: {row}"
        for name in QUERIES
        for side, one, other in (("-", left, right), ("+", right, left))
        for row in one[name]
        if row not in other[name]
    ]
