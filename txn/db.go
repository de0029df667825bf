package txn

import (
	"context"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/tables"
	"drtmx/txn/stats"
)

// DB is a client of a cluster: its catalogue, its partition map, and the
// client halves of all indexes, which its sessions share. Its methods are safe
// for concurrent use; each borrows a [Session] from a pool.
type DB exec.DB

// Open connects to a cluster and fetches its catalogue, its partition map and
// the caches of its indexes. It returns ErrUnavailable if no server answers,
// and ErrProtocol if one speaks another version.
func Open(ctx context.Context, c Config) (*DB, error) {
	db, err := exec.Open(ctx, c.exec())
	return (*DB)(db), err
}

func (db *DB) exec() *exec.DB { return (*exec.DB)(db) }

// Token stands for all transactions that a DB has made or read up to a moment. See
// DB.Token.
type Token uint64

// Token returns a token of all transactions that this DB has made or read. A program
// that passes it on, with a message that depends on these transactions, preserves
// their order at the receiver: see DB.Observe.
func (db *DB) Token() Token { return Token(db.exec().Observed()) }

// Observe makes every transaction of this DB that begins later follow the
// transactions that another DB had made or read when it made the token. Transactions
// of one DB need no token. Those of several DBs need none as long as the data
// servers' clocks agree. If the clocks disagree, only a Snapshot is affected: it
// might show a transaction, and not another one that had ended before at another DB.
func (db *DB) Observe(t Token) { db.exec().Observe(clock.Tick(t)) }

// Home is the partition whose primary runs a procedure; see DB.Home.
type Home int

// Catalog returns the cluster's catalogue.
func (db *DB) Catalog() *tables.Catalog { return db.exec().Catalog() }

// Table returns the table with a name, or an error that wraps tables.ErrNoTable.
func (db *DB) Table(name string) (*tables.Table, error) { return db.exec().Table(name) }

// AddTable adds a table to the catalogue of the cluster while it runs, and returns
// it. It returns when all data servers have the table. The DB needs the role loader
// for all tables. If the table exists already, AddTable returns it; if its definition
// differs, the error is a tables.ErrSchema.
//
// Other DBs learn of the table when they open a session, by Refresh, or when a
// transaction of theirs uses it. A table cannot be removed. If loading has ended,
// only transactions can fill the new table. A cluster without logs that is restarted
// begins with the catalogue of its configuration.
//
// If a data server does not answer, the error is ErrUnavailable. The table may have
// been added or not: call AddTable again.
func (db *DB) AddTable(ctx context.Context, t tables.Definer) (*tables.Table, error) {
	def, err := t.Define()
	if err != nil {
		return nil, err
	}
	c, err := db.exec().Alter(ctx, tables.Change{Table: &def})
	if err != nil {
		return nil, err
	}
	return c.Table(def.Name)
}

// AddColumn adds a column to a table while the cluster runs, as AddTable adds a
// table, and returns the table with it. The table must have a Bytes column, or be
// defined with Grows. Existing rows have the column's default. They are not
// rewritten, so AddColumn takes no longer for a large table.
//
// An earlier *Table or tables.TableOf remains valid. Rows read with it have the
// earlier columns. Rows written with it keep the values of the other columns, or give
// them their defaults. An Update or Put of such a row reads the present row first.
func (db *DB) AddColumn(ctx context.Context, table string, c tables.Column) (*tables.Table, error) {
	cat, err := db.exec().Alter(ctx, tables.Change{Column: &tables.AddedColumn{Table: table, Column: c}})
	if err != nil {
		return nil, err
	}
	return cat.Table(table)
}

// AddIndex adds a secondary index to a table while the cluster runs, as AddTable adds
// a table, and returns it when it is built. Transactions that write the table go on
// meanwhile, and maintain the index from the beginning of the build, even those of
// clients that do not know of the index yet. Loaders of the table are refused. No
// transaction reads the index before it is complete.
//
// The error is ErrExists if two rows have the same key of the index, and
// tables.ErrRow if a row does not fit the index; the error names the key. The index
// is then withdrawn, and can be added again. While it is being built, it already
// refuses inserts and changes that would give a row the key of another one.
//
// The build goes on if ctx ends. Another call of AddIndex waits for it. A snapshot
// with a staleness reads no moment before the index was complete.
func (db *DB) AddIndex(ctx context.Context, table string, s tables.Secondary) (*tables.Index, error) {
	c, err := db.exec().Alter(ctx, tables.Change{Index: &tables.AddedIndex{Table: table, Index: s}})
	if err != nil {
		return nil, err
	}
	t, err := c.Table(table)
	if err != nil {
		return nil, err
	}
	ix := t.Secondary(s.Name)
	if ix == nil {
		return nil, &tables.Error{Err: ErrUnavailable, Table: table, Index: s.Name, Partition: -1, Detail: "the index is still being built"}
	}
	return ix, nil
}

// SetTwin gives a table whose primary index is Hash a twin while the cluster runs, or takes
// it away if twin is empty: see tables.Def.Twin. It returns the table as it is then. A
// table that has a twin must lose it before it can have one of another kind. To build a
// twin anew, take it away and set it again.
//
// Transactions that write the table go on meanwhile, and maintain the twin from the
// beginning of the build, even those of clients that do not know of it yet. Loaders of
// the table are refused until it is built. No transaction reads a range of keys before the
// twin is complete, or after it was taken away: the error of the scan is a
// tables.ErrCatalog while it is built or taken away, and a tables.ErrSchema if there is
// none.
//
// The build goes on if ctx ends. Another call of SetTwin waits for it. If there is no
// memory for the twin, SetTwin returns ErrOutOfMemory, and the table has none.
func (db *DB) SetTwin(ctx context.Context, table string, twin tables.Twin) (*tables.Table, error) {
	c, err := db.exec().Alter(ctx, tables.Change{Twin: &tables.ChangedTwin{Table: table, Twin: twin}})
	if err != nil {
		return nil, err
	}
	t, err := c.Table(table)
	if err != nil {
		return nil, err
	}
	if ix := t.Twin(); ix != nil && ix.IsBuilding() {
		return nil, &tables.Error{Err: ErrUnavailable, Table: table, Index: ix.NameInTable(), Partition: -1, Detail: "the twin is still being built"}
	}
	return t, nil
}

// Refresh fetches the present version of the cluster's catalogue. Transactions in
// progress go on with the version with which they began.
func (db *DB) Refresh(ctx context.Context) error { return db.exec().Refresh(ctx) }

// Partitions returns the number of partitions.
func (db *DB) Partitions() int { return db.exec().Partitions() }

// Servers returns the addresses of the data servers.
func (db *DB) Servers() []string { return db.exec().Servers() }

// Home returns the partition that holds a key of a table, or tables.ErrKey if
// the key does not fit the table.
func (db *DB) Home(t *tables.Table, key tables.Key) (Home, error) {
	h, err := db.exec().Home(t, key)
	return Home(h), err
}

// View runs a read-only transaction by one-sided reads. It is strictly serializable.
// fn runs again if a writer has changed a row or range that it read. View returns an
// error of fn unchanged. See Session.View.
func (db *DB) View(ctx context.Context, fn func(*Txn) error) error {
	return db.exec().View(ctx, body(fn))
}

// Update runs a transaction that may write. It is strictly serializable. fn runs
// again if a writer has changed a row or range that it read. If fn returns an error,
// nothing is written and Update returns that error. See Session.Update.
func (db *DB) Update(ctx context.Context, fn func(*Txn) error) error {
	return userError(db.exec().Update(ctx, body(fn)))
}

// Call runs a procedure at the primary of h, usually the Home of a row that it
// writes. The result belongs to the caller. See Session.Call.
func (db *DB) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	res, err := db.exec().Call(ctx, placement.Partition(h), proc, args)
	return res, userError(err)
}

// Outcome asks the home of a transaction for its outcome, after an UnknownOutcome.
// Nil means that it committed, ErrConflict that it did not commit and never will,
// even if its request is still under way: both are final. ErrOutcomeUnknown means
// that the home has forgotten the outcome, and ErrUnavailable that it does not
// answer. ErrProtocol means that no transaction of this cluster has the id. Outcome
// waits, as transactions do, for a durable server that may come back or be taken
// over.
func (db *DB) Outcome(ctx context.Context, id ID) error {
	return db.exec().Outcome(ctx, exec.ID(id))
}

// NewSession opens a session for one goroutine, with its own connection to each
// server that it uses. The caller must close it. DB's methods use sessions of a pool.
func (db *DB) NewSession(ctx context.Context) (*Session, error) {
	s, err := db.exec().NewSession(ctx)
	return (*Session)(s), err
}

// Seal ends loading: the servers train the models of all ordered indexes and
// refuse further loads. This DB fetches the models that it has used; other
// processes do so once their lookups go wrong.
func (db *DB) Seal(ctx context.Context) error { return db.exec().Seal(ctx) }

// IndexStats returns the counters of the client halves of all indexes.
func (db *DB) IndexStats() []IndexStats {
	var out []IndexStats
	for _, st := range db.exec().IndexStats() {
		out = append(out, IndexStats(st))
	}
	return out
}

// ServerStats asks every server for its statistics. It waits for a durable server
// that does not answer, as transactions do.
func (db *DB) ServerStats(ctx context.Context) ([]stats.Server, error) {
	return db.exec().ServerStats(ctx)
}

// Close closes all sessions. Transactions in progress fail with ErrClosed.
func (db *DB) Close() error { return db.exec().Close() }
