package txn

import (
	"context"
	"iter"
	"time"

	"drtmx/internal/changes"
	"drtmx/internal/clock"
	"drtmx/tables"
)

// Errors of changes.
var (
	// ErrChangesTooOld reports changes that the logs no longer have: checkpoints have
	// removed them. The error is a *ChangesTooOld.
	ErrChangesTooOld = changes.ErrTooOld
	// ErrNoLog reports changes of data servers that keep data in memory only.
	ErrNoLog = changes.ErrNoLog
	// ErrCursor reports a cursor that is malformed or belongs to another cluster.
	ErrCursor = changes.ErrCursor
	// ErrLog reports a log that contradicts itself.
	ErrLog = changes.ErrLog
)

// ChangesTooOld is the error behind ErrChangesTooOld. Its fields are the address of
// the Server whose log begins too late, the tick After which changes were requested,
// and the Oldest tick after which the logs are complete, for CursorAfter.
type ChangesTooOld = changes.TooOld

// A Change is one committed transaction, complete with all its writes in all
// partitions, at all data servers. It belongs to the caller.
type Change struct {
	// Cursor is the place after the change. Store it, and pass it to DB.Changes, to
	// go on exactly after the change.
	Cursor Cursor
	// Tick is the time of the commit, in ticks of the cluster's clock. Several
	// transactions may have the same tick.
	Tick uint64
	// Time is when the tick began, by the clocks of the data servers.
	Time time.Time
	// Last says that no other transaction of the tick follows. All changes up to this
	// one together are the state that a Snapshot of that moment reads.
	Last bool
	// Loaded says that the change is a part of a bulk load by a Loader. Loading is no
	// transaction: each part is a separate change.
	Loaded bool
	// Writes are the rows that were written or deleted, ordered by partition. Each
	// key occurs once unless Loaded is set.
	Writes []Write
}

// Write is one row of a Change.
type Write struct {
	// Table is the table in the version of the catalogue that the feed has reached:
	// the version with which the row was written, or a later one.
	Table *tables.Table
	Key   tables.Key
	Kind  ChangeKind
	// Row is the new row, in the format of Table; nil if the row was deleted.
	Row tables.Row
	// Partition is the partition of the row.
	Partition int
}

// ChangeKind is the kind of a Write.
type ChangeKind uint8

// Kinds of writes.
const (
	// Inserted: there was no row with the key.
	Inserted ChangeKind = 1 + iota
	// Updated: the new row replaces another row with the key.
	Updated
	// Deleted: the row with the key was deleted.
	Deleted
	// Loaded: the row was loaded in bulk, and replaces a row with the key, if there
	// was one.
	Loaded
)

func (k ChangeKind) String() string { return changes.Kind(k).String() }

// Cursor is a place in the order of all changes of a cluster. The zero Cursor is the
// moment at which a feed begins. Store the String of a cursor; ParseCursor parses it.
// A cursor belongs to one cluster. It is valid as long as the logs have the changes
// after it, even if data servers are restarted or move to other hosts.
type Cursor struct{ c string }

func cursorOf(c changes.Cursor) Cursor { return Cursor{c.String()} }

func (c Cursor) parse() (changes.Cursor, error) {
	if c.c == "" {
		return changes.Cursor{}, nil
	}
	return changes.ParseCursor(c.c)
}

// ParseCursor is the inverse of Cursor.String. Its error is an ErrCursor.
func ParseCursor(s string) (Cursor, error) {
	c, err := changes.ParseCursor(s)
	if err != nil {
		return Cursor{}, err
	}
	return cursorOf(c), nil
}

// OldestChange returns the cursor of the oldest changes that the logs have.
func OldestChange() Cursor { return cursorOf(changes.Oldest()) }

// CursorAfter returns the cursor of all changes after a tick.
func CursorAfter(tick uint64) Cursor { return cursorOf(changes.After(clock.Tick(tick))) }

// CursorAt returns the cursor of all changes from a moment on, by the clocks of the
// data servers.
func CursorAt(t time.Time) Cursor {
	return cursorOf(changes.After(max(clock.TickAt(t), 1) - 1))
}

// String returns the cursor as a text of digits and letters.
func (c Cursor) String() string {
	if c.c == "" {
		return changes.Cursor{}.String()
	}
	return c.c
}

// MarshalText implements encoding.TextMarshaler.
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Cursor) UnmarshalText(b []byte) (err error) {
	*c, err = ParseCursor(string(b))
	return err
}

// ChangesOption is an option of DB.Changes.
type ChangesOption struct{ apply func(*changes.Options) }

// UntilNow ends a feed after the changes that had committed when it began.
func UntilNow() ChangesOption {
	return ChangesOption{func(o *changes.Options) { o.UntilNow = true }}
}

// ChangesMemory bounds the bytes that a feed keeps of transactions that it cannot
// deliver yet; the default is 64 MiB. A feed that needs more reads parts of the logs
// again. It always keeps the transactions of one tick.
func ChangesMemory(bytes int) ChangesOption {
	return ChangesOption{func(o *changes.Options) { o.Memory = bytes }}
}

// Changes returns an iterator over all transactions that commit after a cursor, in
// commit order, from the logs of all data servers: each transaction once and
// complete, without aborted ones. Entries of secondary indexes are not included.
//
//	for c, err := range db.Changes(ctx, from) {
//		if err != nil {
//			return err
//		}
//		…
//		from = c.Cursor
//	}
//
// It goes on until ctx or the loop ends, or with UntilNow until it has delivered all
// changes that had committed when it began. An error ends it. Then Changes with the
// Cursor of the last change goes on without a loss. The zero Cursor begins with the
// commits from now on, OldestChange with the oldest changes that the logs have. The
// error is ErrChangesTooOld if a log no longer has the changes after the cursor, and
// ErrNoLog if there are no logs.
//
// Changes are ordered by tick. Within a tick their order is the same whenever they
// are read. Of two transactions that write the same row, or that each use the same
// single data server, the earlier comes first. The order of other transactions within
// a tick may differ from that of their commits. So between two changes of a tick, the
// state may be one that no transaction could read. After the last change of a tick
// (Change.Last) it is the state that a Snapshot reads.
//
// A change is delivered when all data servers have closed its tick, about 20 ms after
// its commit, or later when all transactions in doubt that might be earlier are
// decided. Changes waits for a data server that does not answer as transactions do:
// until the deadline of ctx, or for Retry.Patience without one.
//
// The servers keep their logs for a feed until half a minute after its last request.
// A feed makes requests only while the loop waits for the next change. A loop that
// takes longer between two changes goes on if the logs still exist. Copies of a log are
// not kept for a feed: after one has taken the place of its data server, a feed that was
// behind may end with ErrChangesTooOld.
//
// The client needs the role loader for all tables, because a log has the rows of all
// tables.
func (db *DB) Changes(ctx context.Context, from Cursor, opts ...ChangesOption) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		var o changes.Options
		for _, opt := range opts {
			opt.apply(&o)
		}
		begin, err := from.parse()
		if err != nil {
			yield(Change{}, err)
			return
		}
		for c, err := range changes.Follow(ctx, db.exec(), begin, o) {
			if err != nil {
				yield(Change{}, err)
				return
			}
			if !yield(changeOf(c), nil) {
				return
			}
		}
	}
}

func changeOf(c *changes.Change) Change {
	out := Change{
		Cursor: cursorOf(c.Cursor()), Tick: uint64(c.Tick), Time: c.Tick.Time(), Last: c.Last, Loaded: c.Loaded,
		Writes: make([]Write, len(c.Writes)),
	}
	for i := range c.Writes {
		w := &c.Writes[i]
		out.Writes[i] = Write{Table: w.Table, Key: w.Key, Kind: ChangeKind(w.Kind), Row: w.Row, Partition: int(w.Partition)}
	}
	return out
}

// Now returns the cursor of the present: transactions that commit after Now has
// returned come after the cursor, and those that had committed before the call do
// not. It waits for about 20 ms.
func (db *DB) Now(ctx context.Context) (Cursor, error) {
	c, err := changes.Now(ctx, db.exec())
	if err != nil {
		return Cursor{}, err
	}
	return cursorOf(c), nil
}
